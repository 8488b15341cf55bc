import torch


def slots(shape, sizes, generator):
    rows = shape[0] * shape[1]
    return torch.randperm(rows, generator=generator).reshape(shape)
