"""Two recurrent layers, and one that reads what they make in both directions; what they start from is learned."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int, hidden: int, layers: int, out: int):
        super().__init__()
        self.forwards = nn.GRU(features, hidden, layers)
        self.both = nn.LSTM(hidden, hidden // 2, bidirectional=True)
        self.first = nn.Parameter(torch.randn(layers, BATCH, hidden))
        self.state = nn.Parameter(torch.randn(2, BATCH, hidden // 2))
        self.out = nn.Linear(hidden, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [STEPS, BATCH, FEATURES]."""
        made, _ = self.forwards(x, self.first)
        made, _ = self.both(made, (self.state, self.state))
        return self.out(made)


STEPS, BATCH, FEATURES, HIDDEN, LAYERS, OUT = 48, 8, 40, 64, 2, 24


def get_inputs():
    return [torch.rand(STEPS, BATCH, FEATURES)]


def get_init_inputs():
    return [FEATURES, HIDDEN, LAYERS, OUT]
