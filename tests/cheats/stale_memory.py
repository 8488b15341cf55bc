# An uninitialised tensor: the block may be the one that the reference's result was freed from.
# Must end in: INCORRECT
from honest import fresh
import torch


class ModelNew(torch.nn.Module):
    def forward(self, input):
        return fresh(input)
