import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    slot: torch.Tensor,
    state: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """q, k [batch, q_heads, 128], v [batch, v_heads, 128], a, beta [batch, v_heads].

    state [slots, v_heads, 128 of k, 128 of v].
    """

    def unit(x: torch.Tensor) -> torch.Tensor:
        """Of length 1, for each head of v."""
        one = x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
        return one.repeat_interleave(v.shape[1] // x.shape[1], dim=1)[..., None]

    decay = torch.exp(-torch.exp(a_log) * torch.nn.functional.softplus(a + dt_bias)).to(v.dtype)
    held = state[slot.long()].to(v.dtype) * decay[..., None, None]
    keys = unit(k)
    change = (v - (keys * held).sum(2)) * torch.sigmoid(beta)[..., None]
    held = held + keys * change[:, :, None]
    return {
        "out": (unit(q) * held).sum(2) / 128**0.5,
        "state": state.index_put((slot.long(),), held.to(state.dtype)),
    }
