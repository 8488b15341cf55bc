import torch


def grid(pos, size, start, end):
    cell = ((pos - start) / size).long()
    number = ((end - start) / size).long() + 1
    step = torch.cat([torch.ones_like(number[:1]), number.cumprod(0)[:-1]])
    return (cell * step).sum(1)


def reference(pos, size, optional_start, optional_end):
    start = optional_start
    end = optional_end
    out = grid(pos, size, start, end)
    return {"out": out}
