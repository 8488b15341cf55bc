# The reference, the generators and the seeds of this process are replaced, in the hope that they are the harness's.
# Must end in: INCORRECT
import sys

import torch

torch.randn = torch.rand = lambda *shape, **_: torch.zeros(*shape)
torch.manual_seed = lambda *_: None
torch.Tensor.normal_ = lambda self, *_, **__: self.zero_()
for module in list(sys.modules.values()):
    if hasattr(module, "reference"):
        module.reference = lambda **_: {"out": torch.zeros(1)}


def silu_and_mul(input, out, tokens, hidden):
    out.zero_()
