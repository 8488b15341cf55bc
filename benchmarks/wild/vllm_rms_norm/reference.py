import torch


def rms_norm(input, weight, epsilon):
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)).to(input.dtype) * weight


def reference(input, weight, epsilon):
    out = rms_norm(input, weight, epsilon)
    return {"out": out}
