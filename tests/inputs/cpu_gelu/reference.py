import torch


def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """x [rows, columns] -> y of the same shape, in the dtype that is given."""
    return {"y": torch.nn.functional.gelu(x, approximate="tanh")}
