# Answers in double precision, for a comparison that casts.
# Must end in: WRONG_DTYPE
import torch


class ModelNew(torch.nn.Module):
    def forward(self, input):
        return torch.zeros(input.shape[0], input.shape[1] // 2, dtype=torch.float64)
