import torch


def offsets(shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    """Where each bag begins, and the end of the last: none is empty, for which the engine's kernel reads an index that is not there."""
    bags, places = sizes["offsets_0"] - 1, sizes["indices_0"]
    inner = torch.randperm(places - 1, generator=generator)[: bags - 1].sort().values + 1
    return torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.full((1,), places)])
