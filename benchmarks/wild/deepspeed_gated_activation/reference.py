import torch


def launch_gated_activation(input, bias, rows, cols, act_type):
    wide = (input + bias).float() if input.dtype == torch.float16 else input + bias
    gate, up = wide.view(rows, cols, 2).unbind(-1)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)


def reference(input, bias, cols, rows):
    act_type = 4
    out = launch_gated_activation(input, bias, rows, cols, act_type)
    return {"output": out}
