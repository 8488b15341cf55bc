import torch


def layernorm_forward_cuda(_input, _gamma, eps):
    wide = _input.to(torch.float32 if _input.dtype == torch.float16 else _input.dtype)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * _gamma).to(_input.dtype)


def reference(input, gamma, eps):
    _input = input
    _gamma = gamma
    out = layernorm_forward_cuda(_input, _gamma, eps)
    return {"out": out}
