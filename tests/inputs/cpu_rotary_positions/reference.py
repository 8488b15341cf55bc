import torch


def reference(x: torch.Tensor, position: torch.Tensor, frequency: torch.Tensor) -> dict[str, torch.Tensor]:
    """x [tokens, heads, 2*half], position [tokens], frequency [half] -> x anew, in the dtype that is given.

    An angle is a float32: what its product rounds to is part of what is asked.
    """
    first, second = x.chunk(2, dim=-1)
    angle = (position[:, None].to(torch.float32) * frequency.to(torch.float32)).to(x.dtype)
    c, s = (f(angle)[:, None, :] for f in (torch.cos, torch.sin))
    return {"x": torch.cat([first * c - second * s, second * c + first * s], dim=-1)}
