# An uninitialised tensor: the block may be the one that the reference's result was freed from.
# Must end in: INCORRECT
import torch
from honest import fresh


class ModelNew(torch.nn.Module):
    def forward(self, input):
        return fresh(input)
