# torch.compile writes the kernel.
# Must end in: CHEATED, RUNTIME_ERROR
import torch


@torch.compile
def fused(input):
    gate, up = input.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


class ModelNew(torch.nn.Module):
    def forward(self, input):
        return fused(input)
