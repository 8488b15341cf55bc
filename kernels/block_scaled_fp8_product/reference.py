import torch


def reference(
    a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor
) -> dict[str, torch.Tensor]:
    """a [m, 128 groups], a_scales [m, groups], b [n, 128 groups], b_scales [n / 128 rounded up, groups] -> [m, n]."""
    groups = a_scales.shape[1]
    left = a.to(a_scales.dtype).view(-1, groups, 128) * a_scales[..., None]
    scales = b_scales.repeat_interleave(128, dim=0)[: b.shape[0]]
    right = b.to(b_scales.dtype).view(-1, groups, 128) * scales[..., None]
    return {"out": left.flatten(1) @ right.flatten(1).t()}
