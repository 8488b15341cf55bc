import torch


def act_quant(x, y, s):
    """As DeepSeek-V3's technical report and its tests say: a scale for each 128 values."""
    blocks = x.float().unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1).clamp_min(1e-4) / 448.0
    s.copy_(scale)
    y.copy_((blocks / scale.unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn))


def reference(x, x_0, x_1):
    y = torch.empty(
        (
            x_0,
            x_1,
        ),
        dtype=x.dtype,
        device=x.device,
    )
    s = torch.empty(
        (
            x_0,
            x_1 // 128,
        ),
        dtype=x.dtype,
        device=x.device,
    )
    act_quant(x, y, s)
    return {"y": y, "s": s}
