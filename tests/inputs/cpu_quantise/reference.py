import torch


def reference(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """x [rows, columns] -> q int8 like x, scale [rows] in the dtype that is given."""
    scale = (x.abs().amax(-1) / 127).clamp_min(1e-10)
    return {"q": torch.round(x / scale[:, None]).clamp(-127, 127).to(torch.int8), "scale": scale}
