import torch


def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": torch.softmax(x, dim=-1)}
