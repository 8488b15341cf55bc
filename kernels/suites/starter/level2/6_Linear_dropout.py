"""Dropout that is live: every call is another draw of torch's generator."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int, share: float):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, WIDTH]."""
        return F.silu(self.dropout(self.linear(x)))


BATCH, WIDTH = 256, 512


def get_inputs():
    return [torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, 0.2]
