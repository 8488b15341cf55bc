import torch


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> dict[str, torch.Tensor]:
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return {"y": (x - mean) / torch.sqrt(variance + eps) * weight + bias, "mean": mean.squeeze(-1)}
