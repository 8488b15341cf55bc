"""Softmax over wide rows."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, WIDTH]."""
        return torch.softmax(x, dim=1)


BATCH, WIDTH = 512, 4096


def get_inputs():
    return [torch.randn(BATCH, WIDTH) * 3]


def get_init_inputs():
    return []
