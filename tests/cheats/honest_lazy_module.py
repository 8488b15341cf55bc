# Makes what it needs at its first call, and keeps it: a workspace, not an answer.
# Must end in: PASSED
import numpy as np
import torch
from honest import fresh


class ModelNew(torch.nn.Module):
    workspace = None

    def forward(self, input):
        tokens, hidden = input.shape[0], input.shape[1] // 2
        if self.workspace is None or self.workspace.shape != (tokens, hidden):
            self.workspace = np.empty((tokens, hidden))
        out = fresh(input)
        gate, up = np.split(input.numpy().astype(np.float64), 2, axis=1)
        np.exp(-gate, out=self.workspace)
        out.numpy()[...] = gate / (1.0 + self.workspace) * up
        return out
