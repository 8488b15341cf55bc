import torch


def rms_norm(input, weight, epsilon):
    wide = input.float() if input.dtype == torch.bfloat16 else input
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon) * weight).to(input.dtype)


def reference(input, weight, epsilon):
    out = rms_norm(input, weight, epsilon)
    return {"out": out}
