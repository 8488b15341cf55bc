import torch


def blocks(shape: tuple[int, ...], sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    """Q8_0: a half of scale, then 32 codes of eight bits."""
    made = torch.randint(0, 256, (sizes["m"] * sizes["n"] // 32, 34), dtype=torch.uint8, generator=generator)
    made[:, :2] = torch.rand(len(made), 1, generator=generator).half().view(torch.uint8)
    return made.view(shape)
