import torch


def merge_state(v_a, s_a, v_b, s_b):
    m = torch.maximum(s_a, s_b)
    a, b = torch.exp2(s_a - m), torch.exp2(s_b - m)
    v = (v_a * a[..., None] + v_b * b[..., None]) / (a + b)[..., None]
    return v.to(v_a.dtype), m + torch.log2(a + b)


def reference(v_a, s_a, v_b, s_b):
    out_0, out_1 = merge_state(v_a, s_a, v_b, s_b)
    return {"v_merged": out_0, "s_merged": out_1}
