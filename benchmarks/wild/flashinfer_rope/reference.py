import torch


def apply_rope_pos_ids(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta):
    d = q.shape[-1]
    half = torch.promote_types(q.dtype, torch.float32)
    i = torch.arange(d // 2, device=q.device, dtype=half)
    angle = pos_ids.to(half)[:, None] * (1.0 / (rope_theta ** (2 * i / d)) / rope_scale)[None]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    out = []
    for x in (q, k):
        a, b = x.to(half).chunk(2, dim=-1)
        out.append(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype))
    return out[0], out[1]


def reference(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta):
    out_0, out_1 = apply_rope_pos_ids(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)
    return {"q_rope": out_0, "k_rope": out_1}
