import torch


def l2norm_fwd(x, eps):
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    rstd = torch.rsqrt(y.pow(2).sum(-1) + eps)
    return (y * rstd[..., None]).to(x.dtype), rstd


def reference(x, eps):
    out_0, out_1 = l2norm_fwd(x, eps)
    return {"out_0": out_0, "out_1": out_1}
