# Returns a tensor that is a part of a wider one, so its rows have gaps.
# Must end in: PASSED
from honest import compute
import torch


def silu_and_mul(input):
    wide = torch.empty(input.shape[0], input.shape[1], dtype=input.dtype)
    rows = torch.empty(input.shape[0], input.shape[1] // 2, dtype=input.dtype)
    compute(input, rows)
    wide[:, ::2].copy_(rows)
    return wide[:, ::2]
