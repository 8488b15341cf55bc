"""The product of two upper triangular matrices: half of each is zero, and so is half of the result."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a, b: [SIZE, SIZE], zero below the diagonal."""
        return torch.triu(torch.matmul(a, b))


SIZE = 768


def get_inputs():
    return [torch.triu(torch.rand(SIZE, SIZE)), torch.triu(torch.rand(SIZE, SIZE))]


def get_init_inputs():
    return []
