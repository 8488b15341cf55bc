import torch


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos_sin: torch.Tensor,
    at: torch.Tensor,
    slot: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> dict[str, torch.Tensor]:
    cos, sin = cos_sin[at][:, None].to(query.dtype).chunk(2, dim=-1)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        """Of pairs half a head apart."""
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def written(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """What is for slot -1 goes into a row behind the cache."""
        return torch.cat([cache, cache[:1]]).index_put((slot,), rows)[:-1]

    return {
        "query": rotated(query),
        "key_cache": written(key_cache, rotated(key)),
        "value_cache": written(value_cache, value),
    }
