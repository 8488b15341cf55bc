import torch


def bias_residual_add(y, h, bias, channels, spatial):
    wide = y.to(torch.promote_types(y.dtype, torch.float32)) + bias.repeat(y.numel() // channels)
    return (wide.to(y.dtype).to(wide.dtype) + h).to(y.dtype)


def reference(y, h, bias, spatial, channels):
    out = bias_residual_add(y, h, bias, channels, spatial)
    return {"out": out}
