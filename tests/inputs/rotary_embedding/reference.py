import torch


def reference(position: torch.Tensor, query: torch.Tensor, cache: torch.Tensor) -> dict[str, torch.Tensor]:
    cos, sin = cache[position].unsqueeze(1).chunk(2, dim=-1)
    first, second = query.chunk(2, dim=-1)
    return {"query": torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)}
