import torch


def reference(x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"out": (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn)}
