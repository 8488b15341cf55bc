import torch


def reference(x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out": x * scale.t().unsqueeze(-1)}
