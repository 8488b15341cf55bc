import torch


def moe_reduce(y_expand_permute, expert_weights, invert_permutation, cols, num_experts_per_token, y_reduced):
    rows = y_expand_permute[invert_permutation.long()]
    y_reduced.copy_((rows * expert_weights.unsqueeze(-1)).sum(1))


def reference(y_expand_permute, expert_weights, invert_permutation, cols, expert_weights_0, num_experts_per_token):
    y_reduced = torch.empty(
        (
            expert_weights_0,
            cols,
        ),
        dtype=y_expand_permute.dtype,
        device=y_expand_permute.device,
    )
    moe_reduce(y_expand_permute, expert_weights, invert_permutation, cols, num_experts_per_token, y_reduced)
    return {"y_reduced": y_reduced}
