import torch


def reference(**given: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out": given["in"] + given["bias"] + given["residual"]}
