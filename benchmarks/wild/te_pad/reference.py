import torch


def pad_columnwise_scale_inv(inp):
    rows, columns = inp.shape
    out = torch.zeros((rows + 127) // 128 * 128, (columns + 3) // 4 * 4, dtype=inp.dtype)
    out[:rows, :columns] = inp
    return out


def reference(inp):
    out = pad_columnwise_scale_inv(inp)
    return {"out": out}
