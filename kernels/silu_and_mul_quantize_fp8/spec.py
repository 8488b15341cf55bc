"""SiLU of one half times the other half, quantised to fp8 with a scale for each 128: between the two products of an fp8 MLP or expert."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "hidden", dtype="bfloat16")

SPEC = Spec(
    name="silu_and_mul_quantize_fp8",
    summary="y = silu(input[:, :hidden]) * input[:, hidden:]; scales[t][g] = max(max |group of 128 of y|, 1e-10) / 448; out = fp8(y / its scale)",
    axes=("tokens", "hidden"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "2*hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden"), dtype="float8_e4m3fn"),
        Tensor(name="scales", role="output", shape=("tokens", "hidden//128"), dtype="float32"),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    flops="8*tokens*hidden",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names, of activations that nobody quantises there.
        at("cuda", 1630, 768, weight=40),
        at("cuda", 183, 1024, weight=416),
        at("cuda", 2044, 2048, weight=94),
        at("cuda", 8192, 2048, weight=1974),
        at("cuda", 49032, 768, weight=48),
        at("cuda", 3, 384, timed=False),
        at("cuda", 17, 128, timed=False),
        at("cuda", 1113, 1024, weight=40, held_out=True),
        at("cuda", 24656, 768, weight=48, held_out=True),
        at("cuda", 14320, 1536, weight=48, held_out=True),
        at("cuda", 5, 640, timed=False, held_out=True),
        at("cpu", 6400, 2048, weight=1),
        at("cpu", 183, 1024, weight=1),
        at("cpu", 3, 384, timed=False),
        at("cpu", 17, 128, timed=False),
        at("cpu", 512, 768, weight=1, held_out=True),
        at("cpu", 5, 640, timed=False, held_out=True),
    ),
)
