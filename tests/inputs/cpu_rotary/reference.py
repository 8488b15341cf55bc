import torch


def reference(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> dict[str, torch.Tensor]:
    """x [tokens, heads, 2*half], cosine, sine [tokens, half] -> x anew, in the dtype that is given."""
    first, second = x.chunk(2, dim=-1)
    c, s = cosine[:, None, :], sine[:, None, :]
    return {"x": torch.cat([first * c - second * s, second * c + first * s], dim=-1)}
