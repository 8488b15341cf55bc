import torch


def lengths(shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    """Of sequences: a half to all of what their tables hold; the first has a single token in one draw of four."""
    most = 16 * sizes["table"]
    drawn = torch.randint(most // 2, most + 1, shape, generator=generator)
    alone = torch.randint(0, 4, (1,), generator=generator) == 0
    drawn[0] = torch.where(alone, torch.ones_like(drawn[0]), drawn[0])
    return drawn.to(torch.int32)
