import torch


def column_sum(inp, out, rows, cols):
    out.copy_(inp.sum(0))


def reference(inp, cols, rows):
    out = torch.empty((cols,), dtype=inp.dtype, device=inp.device)
    column_sum(inp, out, rows, cols)
    return {"out": out}
