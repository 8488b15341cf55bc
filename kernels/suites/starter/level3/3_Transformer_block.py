"""Causal self-attention and a feed-forward network, each behind a normalisation and with a residual."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int, heads: int, longest: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.register_buffer("later", torch.triu(torch.ones(longest, longest, dtype=torch.bool), diagonal=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [BATCH, TOKENS, WIDTH]."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(self.later[:tokens, :tokens], float("-inf"))
        x = x + self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.feed(self.norm2(x))


BATCH, TOKENS, WIDTH = 4, 128, 128


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH, 4, 256]
