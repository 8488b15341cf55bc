"""Layer normalisation with a weight and a bias, over the last dimension."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, TOKENS, WIDTH]."""
        return self.norm(x)


BATCH, TOKENS, WIDTH = 16, 128, 768


def get_inputs():
    return [torch.rand(BATCH, TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
