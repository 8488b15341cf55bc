import torch


def reference(x: torch.Tensor, eps: float) -> dict[str, torch.Tensor]:
    return {"y": x / x.norm(dim=-1, keepdim=True).clamp(min=eps)}
