import torch


def causal(x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices):
    import torch.nn.functional as F

    whole = torch.cat([conv_state, x], dim=-1).to(weight.dtype)
    conv_state.copy_(whole[:, :, -conv_state.shape[2] :])
    made = F.conv1d(whole, weight.unsqueeze(1), bias, padding=0, groups=x.shape[1])[:, :, -x.shape[2] :]
    out.copy_(F.silu(made) if silu_activation else made)


def reference(x, conv_state, weight, bias_, out, silu_activation):
    bias = bias_
    cache_seqlens = None
    conv_state_indices = None
    conv_state = conv_state.clone()
    out = out.clone()
    causal(x, conv_state, weight, bias, out, silu_activation, cache_seqlens, conv_state_indices)
    return {"conv_state": conv_state.clone(), "out": out.clone()}
