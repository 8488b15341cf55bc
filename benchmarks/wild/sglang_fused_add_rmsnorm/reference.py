import torch


def fused_add_rmsnorm(input, residual, weight, eps):
    residual.add_(input)
    x = residual.to(torch.promote_types(residual.dtype, torch.float32))
    input.copy_(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight)


def reference(input, residual, weight, eps):
    input = input.clone()
    residual = residual.clone()
    fused_add_rmsnorm(input, residual, weight, eps)
    return {"input": input.clone(), "residual": residual.clone()}
