import torch


def reference(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, eps: float) -> dict[str, torch.Tensor]:
    """x [rows, width], gamma, beta [width] -> y like x, in the dtype that is given."""
    return {"y": torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, eps)}
