import torch


def reference(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """query [batch, heads_kv, group, 128], keys and values [batch, heads_kv, length, 128] -> out like query."""
    scores = query @ keys.transpose(-1, -2) * scale
    return {"out": torch.softmax(scores, dim=-1) @ values}
