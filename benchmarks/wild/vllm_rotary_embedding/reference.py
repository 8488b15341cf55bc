import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    rot = cos_sin_cache.shape[-1]
    cos, sin = cos_sin_cache[positions].chunk(2, dim=-1)
    for x in (query, key):
        y = x.view(x.shape[0], -1, rot)
        a, b = y.chunk(2, dim=-1)
        c, s = cos[:, None, :], sin[:, None, :]
        x.copy_(torch.cat((a * c - b * s, b * c + a * s), dim=-1).view(x.shape))


def reference(positions, query, key, cos_sin_cache, head_size, is_neox):
    query = query.clone()
    key = key.clone()
    rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
    return {"query": query.clone(), "key": key.clone()}
