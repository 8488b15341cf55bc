import torch


def dequantize_nf4(code, A, absmax, blocksize):
    code = torch.tensor(
        [
            -1.0,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0.0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1.0,
        ],
        dtype=absmax.dtype,
        device=absmax.device,
    )
    value = torch.stack([code[(A >> 4).long()], code[(A & 15).long()]], dim=-1).flatten()
    return (
        (value.view(-1, 64) * absmax[:, None])
        .flatten()
        .to(torch.promote_types(torch.float16, absmax.dtype) if absmax.dtype == torch.float64 else torch.float16)
    )


def reference(code, a, absmax, blocksize):
    A = a
    out = dequantize_nf4(code, A, absmax, blocksize)
    return {"out": out}
