"""Scaled dot-product attention that looks back only."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v: [BATCH, HEADS, TOKENS, WIDTH]."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


BATCH, HEADS, TOKENS, WIDTH = 4, 4, 256, 64


def get_inputs():
    return [torch.randn(BATCH, HEADS, TOKENS, WIDTH) for _ in range(3)]


def get_init_inputs():
    return []
