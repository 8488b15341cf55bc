import torch


def reference(input: torch.Tensor) -> dict[str, torch.Tensor]:
    """input [tokens, hidden] -> codes as numbers [tokens, hidden], not rounded yet, and scales [tokens]."""
    scales = (input.abs().amax(-1) / 448).clamp_min(1 / (448 * 512))
    return {"out": (input / scales[:, None]).clamp(-448, 448), "scales": scales}
