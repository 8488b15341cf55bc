import torch


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """query [batch, length, heads, 128], key and value [batch, context, kv_heads, 128] -> as query."""
    batch, length, heads, _ = query.shape
    context, kv_heads = key.shape[1:3]
    grouped = query.view(batch, length, kv_heads, heads // kv_heads, 128)
    scores = torch.einsum("blhgd,bchd->bhglc", grouped, key) * scale
    place = torch.arange(context, device=query.device)
    ahead = place > place[:length, None] + (context - length)
    weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
    return {"out": torch.einsum("bhglc,bchd->blhgd", weights, value).reshape(query.shape)}
