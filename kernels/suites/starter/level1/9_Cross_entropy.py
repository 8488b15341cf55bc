"""A loss over classes: integer targets go in, one number comes out."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """logits: [BATCH, CLASSES]; targets: int64 [BATCH], below CLASSES."""
        return F.cross_entropy(logits, targets)


BATCH, CLASSES = 2048, 1000


def get_inputs():
    return [torch.randn(BATCH, CLASSES), torch.randint(0, CLASSES, (BATCH,))]


def get_init_inputs():
    return []
