import torch


def concat_mla_k(k_nope, k_rope):
    return torch.cat([k_nope, k_rope.expand(-1, k_nope.shape[1], -1)], dim=-1)


def reference(k_nope, k_rope):
    out = concat_mla_k(k_nope, k_rope)
    return {"k": out}
