import torch


def turbo_norm(out, input, bias, gamma, beta, m, n):
    x = out + input + bias
    mean = x.mean(-1, keepdim=True)
    out.copy_((x - mean) * torch.rsqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-6) * gamma + beta)


def reference(out, input, bias, gamma, beta, m, n):
    out = out.clone()
    turbo_norm(out, input, bias, gamma, beta, m, n)
    return {"out": out.clone()}
