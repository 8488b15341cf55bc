import torch


def half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rope(q, k, cos_ptr, sin_ptr, q_embed, k_embed, offset, max_seq_len, seq_dim):
    cos, sin = (cos_ptr[offset : q.shape[0] + offset], sin_ptr[offset : q.shape[0] + offset])
    q_embed.copy_(q * cos + half(q) * sin)
    k_embed.copy_(k * cos + half(k) * sin)


def reference(q, k, cos_ptr, sin_ptr, offset, seq_dim, max_seq_len, q_1):
    q_embed = torch.empty(
        (
            max_seq_len,
            q_1,
            32,
            128,
        ),
        dtype=q.dtype,
        device=q.device,
    )
    k_embed = torch.empty(
        (
            max_seq_len,
            q_1,
            8,
            128,
        ),
        dtype=q.dtype,
        device=q.device,
    )
    rope(q, k, cos_ptr, sin_ptr, q_embed, k_embed, offset, max_seq_len, seq_dim)
    return {"q_embed": q_embed, "k_embed": k_embed}
