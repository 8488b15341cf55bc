import torch


def reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> dict[str, torch.Tensor]:
    """query [seqs, heads, 128], caches [pages, 16, kv_heads, 128], block_table [seqs, table], lengths [seqs]."""
    seqs, table = block_table.shape
    kv_heads = key_cache.shape[2]
    keys = key_cache[block_table.long()].view(seqs, 16 * table, kv_heads, 128)
    values = value_cache[block_table.long()].view(seqs, 16 * table, kv_heads, 128)
    grouped = query.view(seqs, kv_heads, -1, 128)
    scores = torch.einsum("shgd,sthd->shgt", grouped, keys) * scale
    behind = torch.arange(16 * table, device=lengths.device) >= lengths[:, None]
    weights = scores.masked_fill(behind[:, None, None], float("-inf")).softmax(-1)
    return {"out": torch.einsum("shgt,sthd->shgd", weights, values).reshape(query.shape)}
