"""Overlapping max pooling with padding, of values of both signs."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, window: int, stride: int, padding: int):
        super().__init__()
        self.pool = nn.MaxPool2d(window, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, CHANNELS, SIDE, SIDE]."""
        return self.pool(x)


BATCH, CHANNELS, SIDE = 16, 32, 64


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [3, 2, 1]
