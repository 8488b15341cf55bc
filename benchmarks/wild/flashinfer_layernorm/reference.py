import torch.nn.functional as F


def layer_norm(input, gemma, beta, eps):
    return F.layer_norm(input, (input.shape[-1],), gemma.to(input.dtype), beta.to(input.dtype), eps)


def reference(input, gamma, beta, eps):
    gemma = gamma
    out = layer_norm(input, gemma, beta, eps)
    return {"output": out}
