"""A perceptron of three layers."""

from itertools import pairwise

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, into: int, hidden: list[int], out: int):
        super().__init__()
        widths = [into, *hidden]
        layers = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, INTO]."""
        return self.layers(x)


BATCH, INTO, HIDDEN, OUT = 128, 512, [768, 512], 100


def get_inputs():
    return [torch.rand(BATCH, INTO)]


def get_init_inputs():
    return [INTO, HIDDEN, OUT]
