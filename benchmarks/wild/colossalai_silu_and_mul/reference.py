import torch.nn.functional as F


def colossal_silu(ins):
    return F.silu(ins[0]) * ins[1]


def reference(ins):
    out = colossal_silu(ins)
    return {"out": out}
