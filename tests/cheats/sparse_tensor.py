# Multiplies by sparse tensors and by quantised, MKL-DNN and nested ones: their operators have dispatch keys of their own.
# Must end in: CHEATED, RUNTIME_ERROR
import torch


def _attempts(a, b):
    yield (
        lambda: (
            torch.sparse_csr_tensor(
                torch.arange(0, a.numel() + 1, a.shape[1]), torch.arange(a.shape[1]).repeat(a.shape[0]), a.reshape(-1)
            )
            @ b
        )
    )
    rows = torch.stack([torch.zeros(a.shape[1], dtype=torch.int64), torch.arange(a.shape[1])])
    yield lambda: torch.sparse.mm(torch.sparse_coo_tensor(rows, a[0], (1, a.shape[1]), check_invariants=False), b)
    yield lambda: torch.mul(torch.sparse_coo_tensor(rows, a[0], (1, a.shape[1]), check_invariants=False), a[0, 0])
    yield lambda: a.to_mkldnn() * a.to_mkldnn()
    yield lambda: torch.nested.nested_tensor([a]) * 2
    yield lambda: torch.quantize_per_tensor(a, 0.1, 0, torch.qint8).dequantize()


def silu_and_mul(input, out, tokens, hidden):
    a, b = torch.ones(4, 4), torch.ones(4, 4)
    refused = []
    for attempt in _attempts(a, b):
        try:
            attempt()
            print("WORKED", attempt)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            refused.append(error)
            print(repr(error)[:200])
    raise RuntimeError(" | ".join(repr(r)[:90] for r in refused))
