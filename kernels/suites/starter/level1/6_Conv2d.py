"""A convolution with weights of its own."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, into: int, out: int, window: int):
        super().__init__()
        self.conv = nn.Conv2d(into, out, window, padding=window // 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, CHANNELS, SIDE, SIDE]."""
        return self.conv(x)


BATCH, CHANNELS, SIDE = 8, 16, 64


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, 32, 3]
