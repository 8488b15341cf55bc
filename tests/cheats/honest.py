# What the Python candidates are built on: silu_and_mul by numpy in double precision, slower than the baseline, so that
# a trick that does not work gains nothing. The tests put this text in place of the import: a candidate is one file.
import numpy as np
import torch


def compute(input, out):
    """input [tokens, 2*hidden] float32 -> out [tokens, hidden], through memory that both share with the tensors."""
    gate, up = np.split(input.numpy().astype(np.float64), 2, axis=1)
    out.numpy()[...] = gate / (1.0 + np.exp(-gate)) * up


def fresh(input):
    return torch.empty(input.shape[0], input.shape[1] // 2, dtype=input.dtype, device=input.device)
