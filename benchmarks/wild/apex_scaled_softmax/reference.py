import torch


def scaled_softmax(input, scale_factor):
    return torch.softmax(input * scale_factor, dim=-1)


def reference(input, scale_factor):
    out = scaled_softmax(input, scale_factor)
    return {"out": out}
