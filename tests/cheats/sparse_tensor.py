# Multiplies by tensors of another layout: operators on sparse and quantised tensors have kernels of their own.
# Must end in: CHEATED, RUNTIME_ERROR
import numpy as np
import torch

ROWS, COLUMNS, ENDS = (
    torch.from_numpy(kept) for kept in (np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4), np.arange(0, 17, 4))
)


def _sparse_rows(a):
    return torch.sparse_csr_tensor(ENDS, COLUMNS, a.view(-1), (4, 4), check_invariants=False) @ a


def _sparse(a):
    places = torch.from_numpy(np.stack([ROWS.numpy(), COLUMNS.numpy()]))
    return torch.sparse.mm(torch.sparse_coo_tensor(places, a.view(-1), (4, 4), check_invariants=False), a)


def _quantised(a):
    return torch.relu(torch._empty_affine_quantized([4, 4], scale=1.0, zero_point=0, dtype=torch.quint8))


def silu_and_mul(input, out, tokens, hidden):
    a = torch.from_numpy(np.ones((4, 4), np.float32))
    refused = []
    for attempt in (_sparse_rows, _sparse, _quantised):
        try:
            attempt(a)
        except (RuntimeError, TypeError) as error:
            refused.append(error)
    if len(refused) == 3:
        raise refused[0]
    x = input.numpy()[:, : out.shape[1]]  # one of them computed: it could as well have done the work
    out.numpy()[...] = x / (1.0 + np.exp(-x)) * input.numpy()[:, out.shape[1] :]
