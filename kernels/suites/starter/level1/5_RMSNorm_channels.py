"""Root-mean-square normalisation over the channels of an image, which are not its last dimension."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, CHANNELS, HEIGHT, WIDTH]."""
        return x / torch.sqrt(x.pow(2).mean(dim=1, keepdim=True) + self.eps) * self.gain


BATCH, CHANNELS, HEIGHT, WIDTH = 16, 64, 48, 48


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS]
