"""A diagonal matrix, given as its diagonal, times a dense one: written as a product, it is a scaling of rows."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, diagonal: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """diagonal: [ROWS]; b: [ROWS, COLUMNS]."""
        return torch.diag(diagonal) @ b


ROWS, COLUMNS = 1024, 512


def get_inputs():
    return [torch.rand(ROWS), torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return []
