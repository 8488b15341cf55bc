import torch


def rms_norm_f32(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def reference(x, eps):
    out = rms_norm_f32(x, eps)
    return {"dst": out}
