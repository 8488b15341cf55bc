"""What a user would call instead: plain PyTorch, in the inputs' own dtype. `benchmarks/library.py` times it, compiled too."""

from __future__ import annotations

import torch
from torch import Tensor


def eager(prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor, suffix_lse: Tensor) -> tuple[Tensor, ...]:
    prefix_lse = torch.where(prefix_lse == torch.inf, -torch.inf, prefix_lse)
    suffix_lse = torch.where(suffix_lse == torch.inf, -torch.inf, suffix_lse)
    output_lse = torch.logaddexp(prefix_lse, suffix_lse)
    safe = torch.where(output_lse == -torch.inf, 0.0, output_lse)
    prefix_weight = (prefix_lse - safe).exp().t().unsqueeze(-1)
    suffix_weight = (suffix_lse - safe).exp().t().unsqueeze(-1)
    output = (prefix_output * prefix_weight + suffix_output * suffix_weight).to(prefix_output.dtype)
    return output, output_lse
