import torch


def reference(
    x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor
) -> dict[str, torch.Tensor]:
    return {"out": torch.relu(x + bias) * scale.unsqueeze(-1) + residual}
