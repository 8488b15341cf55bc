import torch


def reference(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> dict[str, torch.Tensor]:
    """x [k], codes [n, k / 2], scales and zeros [n, k / 128] -> [n]."""
    digits = torch.stack([codes & 15, codes >> 4], dim=-1).view(*scales.shape, 128).to(x.dtype)
    weights = (digits - zeros[..., None].to(x.dtype)) * scales[..., None]
    return {"out": (weights.view(scales.shape[0], -1) * x).sum(-1)}
