import torch.nn.functional as F


def reference(input, bias, dtype):
    biased = (input + bias).to(dtype).to(input.dtype)  # it rounds the sum, as torch's two operators do
    return {"output": F.gelu(biased, approximate="tanh")}
