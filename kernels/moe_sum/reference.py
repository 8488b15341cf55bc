import torch


def reference(input: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out": input.sum(dim=1)}
