# Returns the same output tensor call after call: accepted with a visible warning.
# Must end in: PASSED
import torch
from honest import compute, fresh

OUTPUTS = {}


class ModelNew(torch.nn.Module):
    def forward(self, input):
        out = OUTPUTS.setdefault(tuple(input.shape), fresh(input))
        compute(input, out)
        return out
