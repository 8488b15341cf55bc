"""A linear layer whose outputs are summed: one matrix-vector product would do."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, into: int, out: int):
        super().__init__()
        self.linear = nn.Linear(into, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, INTO]."""
        x = self.linear(x).sum(dim=1, keepdim=True)
        return torch.logsumexp(torch.cat([x, -x], dim=1), dim=1)


BATCH, INTO, OUT = 512, 1024, 512


def get_inputs():
    return [torch.rand(BATCH, INTO)]


def get_init_inputs():
    return [INTO, OUT]
