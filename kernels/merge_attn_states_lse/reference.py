import torch


def reference(
    prefix_output: torch.Tensor, prefix_lse: torch.Tensor, suffix_output: torch.Tensor, suffix_lse: torch.Tensor
) -> dict[str, torch.Tensor]:
    """*_output [tokens, heads, head_dim], *_lse [heads, tokens] -> output, output_lse, in the dtype of the outputs.

    An lse of +inf counts as -inf: a part without keys. Where both parts are empty the output is 0 and its lse -inf.
    """
    lses = [lse.to(prefix_output.dtype) for lse in (prefix_lse, suffix_lse)]
    prefix, suffix = (torch.where(lse == torch.inf, -torch.inf, lse) for lse in lses)
    highest = torch.maximum(prefix, suffix)
    highest = torch.where(highest == -torch.inf, 0.0, highest)
    prefix, suffix = (prefix - highest).exp_(), (suffix - highest).exp_()
    total = prefix + suffix
    share = torch.where(total == 0, 1.0, total)
    # [heads, tokens] -> [tokens, heads, 1]
    prefix, suffix = (part.div_(share).T.unsqueeze(-1) for part in (prefix, suffix))
    output = prefix_output * prefix
    return {"output": output.addcmul_(suffix_output, suffix), "output_lse": total.log_().add_(highest)}
