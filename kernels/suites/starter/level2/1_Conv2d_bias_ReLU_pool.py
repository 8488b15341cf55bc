"""A convolution, a bias of its own, ReLU, a scale, average pooling."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, into: int, out: int, scale: float):
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(out, 1, 1))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, CHANNELS, SIDE, SIDE]."""
        x = torch.relu(self.conv(x) + self.bias) * self.scale
        return F.avg_pool2d(x, 2)


BATCH, CHANNELS, SIDE = 8, 8, 48


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, 16, 1.5]
