"""A gated recurrence over a sequence, with its state as a second input and a second output."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, into: int, width: int):
        super().__init__()
        self.gates = nn.Linear(into, 2 * width)
        self.out = nn.Linear(width, into)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [BATCH, TOKENS, INTO]; state: [BATCH, WIDTH] -> [BATCH, TOKENS, INTO], [BATCH, WIDTH]."""
        keep, new = self.gates(x).chunk(2, dim=-1)
        keep = torch.sigmoid(keep)
        states = []
        for step in range(x.shape[1]):
            state = keep[:, step] * state + (1 - keep[:, step]) * torch.tanh(new[:, step])
            states.append(state)
        return self.out(torch.stack(states, dim=1)), state


BATCH, TOKENS, INTO, WIDTH = 16, 32, 64, 128


def get_inputs():
    return [torch.randn(BATCH, TOKENS, INTO), torch.zeros(BATCH, WIDTH)]


def get_init_inputs():
    return [INTO, WIDTH]
