import torch


def fast_hadamard_transform(x, scale):
    n = x.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    y, h = x.to(wide), 1
    while h < n:
        y = y.view(*x.shape[:-1], n // (2 * h), 2, h)
        y = torch.stack((y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]), dim=-2).reshape(*x.shape)
        h *= 2
    return (y * scale).to(x.dtype)


def reference(x, scale):
    out = fast_hadamard_transform(x, scale)
    return {"out": out}
