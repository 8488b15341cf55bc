import torch


def reference(x: torch.Tensor, mask: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    return {"y": torch.softmax(x * scale + mask, dim=-1)}
