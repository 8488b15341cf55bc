import torch


def reference(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cache: torch.Tensor, is_neox: int
) -> dict[str, torch.Tensor]:
    cos, sin = cache[positions].unsqueeze(1).chunk(2, dim=-1)

    def rotated(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.chunk(2, dim=-1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)

    return {"query": rotated(query), "key": rotated(key)}
