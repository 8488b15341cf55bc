import torch


def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """x [rows, columns] -> y like x, in the dtype that is given."""
    return {"y": x.cumsum(-1)}
