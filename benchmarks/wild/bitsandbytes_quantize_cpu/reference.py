import torch


def reference(code, a):
    rows = a.view(-1, 256)
    absmax = rows.abs().amax(-1)
    scaled = rows / torch.where(absmax == 0, 1, absmax)[:, None]
    out = (scaled[..., None] - code).abs().argmin(-1)
    out = torch.where(absmax[:, None] == 0, torch.zeros_like(out), out)
    return {"absmax": absmax, "out": out.flatten().to(torch.uint8)}
