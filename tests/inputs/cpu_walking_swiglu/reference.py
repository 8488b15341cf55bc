import torch


def reference(gate, up):
    """As the spec says, in the dtype that is given."""
    return {"out": torch.nn.functional.silu(gate) * up}
