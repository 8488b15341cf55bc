import torch


def code(shape, sizes, generator):
    return torch.cat([torch.linspace(-1, 0, 128), torch.linspace(0, 1, 129)[1:]])  # zero is a code, as in theirs
