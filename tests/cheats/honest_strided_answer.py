# Returns a tensor that is a part of a wider one, so its rows have gaps.
# Must end in: PASSED
import torch
from honest import compute, fresh


class ModelNew(torch.nn.Module):
    def forward(self, input):
        rows = fresh(input)
        compute(input, rows)
        wide = torch.empty(input.shape[0], input.shape[1], dtype=input.dtype)
        wide[:, ::2].copy_(rows)
        return wide[:, ::2]
