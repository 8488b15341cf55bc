import torch


def wide(tensor):
    return tensor if tensor.dtype is torch.float64 or tensor.is_complex() else tensor.to(torch.float32)


def reference(k, k_k, a, k_a, head_size):
    t0 = k.clone()
    t1 = t0.clone()
    t1.requires_grad_()
    t3 = wide(t1)
    t4 = a.clone()
    t5 = t4.clone()
    t5.requires_grad_()
    t7 = wide(t5)
    t8 = k_a.clone()
    t9 = t8.clone()
    t9.requires_grad_()
    t11 = wide(t9)
    t12 = t7.mul(t11)
    t13 = t12.add(1.0)
    t14 = wide(t9)
    t15 = t13.sub(t14)
    t16 = t3.mul(t15)
    t17 = wide(t1)
    t18 = t17.view(2, 3, 2, head_size)
    t19 = k_k.clone()
    t20 = t19.clone()
    t20.requires_grad_()
    t22 = wide(t20)
    t23 = t22.view(1, 1, 2, head_size)
    t24 = t18.mul(t23)
    t25 = t24.square()
    t26 = t25.sum(dim=-1, keepdim=True)
    t27 = t26.clamp_min(1e-24)
    t28 = torch.rsqrt(t27)
    t29 = t24.mul(t28)
    t30 = t29.reshape_as(t1)
    t31 = t30.neg()
    t32 = t29.reshape_as(t1)
    t33 = wide(t5)
    t34 = t32.mul(t33)
    return {"out": t16, "out_1": t31, "out_2": t34}
