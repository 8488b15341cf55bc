import torch


def reference(src, mask, scale):
    """As the spec says, in the dtype that is given."""
    return {"dst": torch.softmax(src * scale + mask, -1)}
