"""A linear layer, Swish, group normalisation."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, into: int, out: int, groups: int):
        super().__init__()
        self.linear = nn.Linear(into, out, bias=False)
        self.norm = nn.GroupNorm(groups, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, INTO]."""
        x = self.linear(x)
        return self.norm(torch.sigmoid(x) * x)


BATCH, INTO, OUT = 256, 512, 768


def get_inputs():
    return [torch.randn(BATCH, INTO)]


def get_init_inputs():
    return [INTO, OUT, 16]
