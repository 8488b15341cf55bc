"""Quantisation to fp8 with a scale for each 128 elements, before a block-scaled product, as SGLang and vLLM call it."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "hidden", dtype="bfloat16")

SPEC = Spec(
    name="quantize_fp8_per_group",
    summary="scales[t][g] = max(max |group of 128|, 1e-10) / 448; out = fp8(input / its group's scale)",
    axes=("tokens", "hidden"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden"), dtype="float8_e4m3fn"),
        Tensor(name="scales", role="output", shape=("tokens", "hidden//128"), dtype="float32"),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    flops="3*tokens*hidden",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names.
        at("cuda", 1, 7168, weight=72750),
        at("cuda", 726, 7168, weight=61),
        at("cuda", 4192, 7168, weight=61),
        at("cuda", 16768, 7168, weight=61),
        at("cuda", 37504, 2048, weight=96),
        at("cuda", 3, 384, timed=False),
        at("cuda", 17, 128, timed=False),
        at("cuda", 1, 2048, weight=9408, held_out=True),
        at("cuda", 1933, 7168, weight=61, held_out=True),
        at("cuda", 40448, 7168, weight=125, held_out=True),
        at("cuda", 5, 640, timed=False, held_out=True),
        at("cpu", 3200, 7168, weight=1),
        at("cpu", 64, 7168, weight=1),
        at("cpu", 3, 384, timed=False),
        at("cpu", 17, 128, timed=False),
        at("cpu", 512, 2048, weight=1, held_out=True),
        at("cpu", 5, 640, timed=False, held_out=True),
    ),
)
