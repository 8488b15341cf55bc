import torch


def rms_norm_cuda(x, w, epsilon, rows, dim, add_residual, input_fp32, output_fp32):
    wide = x.to(torch.float32 if x.dtype == torch.float16 else x.dtype)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon) * w).to(x.dtype)


def reference(x, w, epsilon, add_residual, input_fp32, output_fp32, label, dim, rows):
    out = rms_norm_cuda(x, w, epsilon, rows, dim, add_residual, input_fp32, output_fp32)
    return {"y": out}
