"""Dynamic quantisation to fp8 with a scale a token, before a product of fp8 matrices, as vLLM calls it."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "hidden", dtype="bfloat16")

SPEC = Spec(
    name="quantize_fp8_per_token",
    summary="scales[t] = max(max_i |input[t][i]| / 448, 1 / (448 * 512)); out = fp8(input / scales[t])",
    axes=("tokens", "hidden"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden"), dtype="float8_e4m3fn"),
        Tensor(name="scales", role="output", shape=("tokens",), dtype="float32"),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    flops="3*tokens*hidden",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names.
        at("cuda", 1, 4096, weight=10695),
        at("cuda", 1688, 7168, weight=6496),
        at("cuda", 3804, 7168, weight=8358),
        at("cuda", 4144, 2048, weight=230),
        at("cuda", 45568, 2048, weight=40),
        at("cuda", 3, 1001, timed=False),
        at("cuda", 5, 264, timed=False),
        at("cuda", 1, 2048, weight=2700, held_out=True),
        at("cuda", 8208, 4096, weight=225, held_out=True),
        at("cuda", 7, 514, timed=False, held_out=True),
        at("cpu", 4800, 4608, weight=1),
        at("cpu", 64, 7168, weight=1),
        at("cpu", 3, 1001, timed=False),
        at("cpu", 5, 264, timed=False),
        at("cpu", 96, 4096, weight=1, held_out=True),
        at("cpu", 7, 514, timed=False, held_out=True),
    ),
)
