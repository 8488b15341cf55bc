import torch


def reference(input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> dict[str, torch.Tensor]:
    """input, residual [tokens, hidden], weight [hidden] -> codes, not rounded, scales [tokens], residual anew."""
    total = input + residual
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight
    scales = (normed.abs().amax(-1) / 448).clamp_min(1 / (448 * 512))
    return {"out": (normed / scales[:, None]).clamp(-448, 448), "scales": scales, "residual": total}
