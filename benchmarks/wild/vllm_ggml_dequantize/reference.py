import torch


def ggml_dequantize(W, type, m, n, dtype):
    blocks = W.view(m * n // 32, 34)
    d = blocks[:, :2].contiguous().view(torch.float16).double()
    return (d * blocks[:, 2:].contiguous().view(torch.int8)).view(m, n).to(dtype)


def reference(w, type, m, n):
    W = w
    dtype = torch.float16
    out = ggml_dequantize(W, type, m, n, dtype)
    return {"out": out}
