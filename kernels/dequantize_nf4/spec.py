"""Weights from NF4 codes, as QLoRA keeps them: blocks of 64 with a scale each, as bitsandbytes lays them out."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("blocks", dtype="bfloat16")

SPEC = Spec(
    name="dequantize_nf4",
    summary="out[64 b + i] = NF4[code i of block b] * absmax[b], the upper four bits of a byte first",
    axes=("blocks",),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="packed", role="input", shape=("blocks*32",), dtype="uint8", values=("bits",)),
        Tensor(name="absmax", role="input", shape=("blocks",), dtype="float32", values=("range:0.01:2", "range:-3:3")),
        Tensor(name="out", role="output", shape=("blocks*64",), ulps=1.02),
        Size(name="blocks"),
    ),
    flops="64*blocks",
    default_baseline={"cuda": "production"},
    workloads=(
        # Matrices of Llama-3-8B, as often as one pass has them: 1024 x 4096 (k, v), 4096 x 4096 (q, o), 14336 x 4096 (gate, up, down).
        at("cuda", 65536, weight=64),
        at("cuda", 262144, weight=64),
        at("cuda", 917504, weight=96),
        at("cuda", 5, timed=False),
        at("cuda", 67, timed=False),
        at("cuda", 786432, weight=32, held_out=True),
        at("cuda", 129, timed=False, held_out=True),
        at("cpu", 425984, weight=1),
        at("cpu", 16384, weight=1),
        at("cpu", 5, timed=False),
        at("cpu", 67, timed=False),
        at("cpu", 65536, weight=1, held_out=True),
        at("cpu", 129, timed=False, held_out=True),
    ),
)
