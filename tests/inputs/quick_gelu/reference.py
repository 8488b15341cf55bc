import torch


def reference(input: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out": input * torch.sigmoid(1.702 * input)}
