import torch


def reference(input):
    t0 = torch.nn.functional.relu(input, inplace=False)
    return {"out": t0}
