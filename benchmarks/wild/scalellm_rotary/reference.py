import torch


def apply_rotary_pos_emb(query, key, positions, cos_sin, rotary_dim, interleaved):
    cos, sin = cos_sin[positions.long()].unbind(1)
    cos, sin = cos[:, None], sin[:, None]

    def turned(x):
        a, b = x[..., : rotary_dim // 2], x[..., rotary_dim // 2 : rotary_dim]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., rotary_dim:]], -1)

    query.copy_(turned(query))
    key.copy_(turned(key))


def reference(querys, keys, positions, cos_sin, rotary_dim, interleaved):
    query = querys
    key = keys
    query = query.clone()
    key = key.clone()
    apply_rotary_pos_emb(query, key, positions, cos_sin, rotary_dim, interleaved)
    return {"querys": query, "keys": key}
