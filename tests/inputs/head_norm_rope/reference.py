import torch


def reference(
    qk: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, eps: float
) -> dict[str, torch.Tensor]:
    x = qk * torch.rsqrt(qk.pow(2).mean(-1, keepdim=True) + eps) * weight
    c, s = cos[positions.long()].unsqueeze(1), sin[positions.long()].unsqueeze(1)
    first, second = x[..., ::2], x[..., 1::2]
    return {"qk": torch.stack((first * c - second * s, second * c + first * s), dim=-1).flatten(-2)}
