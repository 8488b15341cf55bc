import torch


def reference(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, slot: torch.Tensor
) -> dict[str, torch.Tensor]:
    """x [batch, dim], state [slots, dim, 3], weight [dim, 4], bias [dim], slot [batch] -> out, state anew."""
    held = state[slot.long()]
    summed = (held * weight[:, :3]).sum(-1) + x * weight[:, 3] + bias
    window = torch.cat([held[..., 1:], x[..., None]], dim=-1)
    return {"out": summed * torch.sigmoid(summed), "state": state.index_put((slot.long(),), window)}
