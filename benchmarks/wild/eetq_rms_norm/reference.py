import torch


def layernorm_forward(input, gamma, out, eps):
    x = input.float()
    out.copy_(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gamma)


def reference(input, gamma, eps, input_1, input_2):
    out = torch.empty(
        (
            1,
            input_1,
            input_2,
        ),
        dtype=input.dtype,
        device=input.device,
    )
    layernorm_forward(input, gamma, out, eps)
    return {"out": out}
