"""A linear layer, GELU, and a second input added to it."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x, residual: [BATCH, WIDTH]."""
        return F.gelu(self.linear(x)) + residual


BATCH, WIDTH = 512, 512


def get_inputs():
    return [torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH]
