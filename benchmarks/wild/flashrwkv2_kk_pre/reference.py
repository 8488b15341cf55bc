import torch


def wide(tensor):
    return tensor if tensor.dtype is torch.float64 or tensor.is_complex() else tensor.to(torch.float32)


def reference(k, k_k, a, k_a, head_size):
    t0 = k.clone()
    t1 = wide(t0)
    t2 = a.clone()
    t3 = wide(t2)
    t4 = k_a.clone()
    t5 = wide(t4)
    t6 = t3.mul(t5)
    t7 = t6.add(1.0)
    t8 = wide(t4)
    t9 = t7.sub(t8)
    t10 = t1.mul(t9)
    t11 = wide(t0)
    t12 = t11.view(2, 3, 2, head_size)
    t13 = k_k.clone()
    t14 = wide(t13)
    t15 = t14.view(1, 1, 2, head_size)
    t16 = t12.mul(t15)
    t17 = t16.square()
    t18 = t17.sum(dim=-1, keepdim=True)
    t19 = t18.clamp_min(1e-24)
    t20 = torch.rsqrt(t19)
    t21 = t16.mul(t20)
    t22 = t21.reshape_as(t0)
    t23 = t22.neg()
    t24 = t21.reshape_as(t0)
    t25 = wide(t2)
    t26 = t24.mul(t25)
    return {"out": t10, "out_1": t23, "out_2": t26}
