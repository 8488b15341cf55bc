"""A vector of activations times a matrix of 4-bit weights with a scale and a zero for each 128, as AWQ's and GPTQ's decoding needs it."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("n", "k", dtype="bfloat16")

SPEC = Spec(
    name="w4a16_gemv",
    summary="out[n] = sum over k of x[k] * (code[n][k] - zeros[n][k/128]) * scales[n][k/128], the lower four bits of a byte first",
    axes=("n", "k"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="x", role="input", shape=("k",)),
        Tensor(name="codes", role="input", shape=("n", "k//2"), dtype="uint8", values=("bits",), constant=True),
        Tensor(name="scales", role="input", shape=("n", "k//128"), values=("range:0.002:0.02",), constant=True),
        Tensor(
            name="zeros", role="input", shape=("n", "k//128"), dtype="uint8", values=("integers:0:16",), constant=True
        ),
        Tensor(name="out", role="output", shape=("n",)),
        Size(name="n"),
        Size(name="k"),
    ),
    flops="3*n*k",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Products of Llama-3-8B and 70B, as often as one token has them; the last is as large as a vocabulary's.
        at("cuda", 4096, 4096, weight=64),
        at("cuda", 14336, 4096, weight=64),
        at("cuda", 8192, 28672, weight=80),
        at("cuda", 65536, 8192, weight=1),
        at("cuda", 3, 256, timed=False),
        at("cuda", 37, 640, timed=False),
        at("cuda", 6144, 4096, weight=32, held_out=True),
        at("cuda", 28672, 8192, weight=160, held_out=True),
        at("cuda", 5, 1152, timed=False, held_out=True),
        at("cpu", 16384, 8192, weight=1),
        at("cpu", 1024, 4096, weight=1),
        at("cpu", 3, 256, timed=False),
        at("cpu", 37, 640, timed=False),
        at("cpu", 4096, 4096, weight=1, held_out=True),
        at("cpu", 5, 1152, timed=False, held_out=True),
    ),
)
