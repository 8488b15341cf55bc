import torch


def wide(tensor):
    return tensor if tensor.dtype is torch.float64 or tensor.is_complex() else tensor.to(torch.float32)


def reference(input, weight, epsilon):
    t0 = wide(input)
    t1 = t0.pow(2)
    t2 = t1.mean(-1, keepdim=True)
    t3 = t2.add(epsilon)
    t4 = torch.rsqrt(t3)
    t5 = t0.mul(t4)
    t6 = weight.mul(t5)
    t7 = t6.to(input.dtype)
    return {"output": t7}
