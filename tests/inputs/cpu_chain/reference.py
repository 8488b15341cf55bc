import torch


def reference(
    x: torch.Tensor, bias: torch.Tensor, gate: torch.Tensor, residual: torch.Tensor
) -> dict[str, torch.Tensor]:
    """x, residual [rows, columns], bias [columns], gate [rows] -> y like x, in the dtype that is given."""
    return {"y": torch.sigmoid(x + bias) * gate[:, None] + residual}
