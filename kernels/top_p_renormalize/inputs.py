"""Probabilities are multiples of 2^-23 and shares odd ones of 2^-24: sums are exact in float32 in any order, and none meets a share."""

import torch


def _rows(shape: tuple[int, ...], spread: float, generator: torch.Generator) -> torch.Tensor:
    rows = (spread * torch.randn(shape, generator=generator)).softmax(-1)
    counts = (rows.double() * 2**23).floor()
    counts[:, 0] += 2**23 - counts.sum(-1)
    return (counts / 2**23).float()


def draw_peaked(shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    return _rows(shape, 3.0, generator)


def flat(shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    return _rows(shape, 1.0, generator)


def shares(shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    """Between 0.3 and 0.95."""
    counts = torch.randint(int(0.3 * 2**23), int(0.95 * 2**23), shape, generator=generator)
    return ((2 * counts + 1).double() / 2**24).float()
