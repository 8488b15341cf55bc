"""Rows of a table by integer indices, averaged over a masked sequence, scaled to length one."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, words: int, width: int):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, tokens: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """tokens: int64 [BATCH, TOKENS]; kept: bool [BATCH, TOKENS]."""
        weight = kept.unsqueeze(-1).to(self.table.weight.dtype)
        total = (self.table(tokens) * weight).sum(dim=1)
        return F.normalize(total / weight.sum(dim=1).clamp(min=1.0), dim=1)


BATCH, TOKENS, WORDS, WIDTH = 64, 64, 5000, 256


def get_inputs():
    return [torch.randint(0, WORDS, (BATCH, TOKENS)), torch.rand(BATCH, TOKENS) < 0.8]


def get_init_inputs():
    return [WORDS, WIDTH]
