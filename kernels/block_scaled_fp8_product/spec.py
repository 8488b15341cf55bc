"""A product of fp8 activations and fp8 weights with scales for blocks, as DeepSeek-V3's and Qwen3's fp8 checkpoints need it in every layer."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("m", "n", "groups", dtype="bfloat16")

SPEC = Spec(
    name="block_scaled_fp8_product",
    summary="out[m][n] = sum over groups g of 128 of a_scales[m][g] * b_scales[n/128][g] * (a[m] . b[n] within g)",
    axes=("m", "n", "groups"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="a", role="input", shape=("m", "128*groups"), dtype="float8_e4m3fn"),
        Tensor(name="a_scales", role="input", shape=("m", "groups"), dtype="float32", values=("range:0.002:0.02",)),
        Tensor(name="b", role="input", shape=("n", "128*groups"), dtype="float8_e4m3fn", constant=True),
        Tensor(
            name="b_scales",
            role="input",
            shape=("(n + 127)//128", "groups"),
            dtype="float32",
            values=("range:0.002:0.02",),
            constant=True,
        ),
        Tensor(name="out", role="output", shape=("m", "n")),
        Size(name="m"),
        Size(name="n"),
        Size(name="groups"),
    ),
    flops="256*m*n*groups",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names.
        at("cuda", 237, 4096, 32, weight=1174),
        at("cuda", 1024, 2048, 16, weight=560),
        at("cuda", 349, 2048, 16, weight=140),
        at("cuda", 4533, 2048, 16, weight=96),
        at("cuda", 16384, 4096, 32, weight=45),
        at("cuda", 3, 130, 1, timed=False),
        at("cuda", 37, 261, 3, timed=False),
        at("cuda", 3072, 4096, 32, weight=60, held_out=True),
        at("cuda", 6918, 2048, 16, weight=96, held_out=True),
        at("cuda", 35, 127, 2, timed=False, held_out=True),
        at("cpu", 4, 8192, 64, weight=1),
        at("cpu", 37, 1024, 8, weight=1),
        at("cpu", 3, 130, 1, timed=False),
        at("cpu", 37, 261, 3, timed=False),
        at("cpu", 8, 4096, 16, weight=1, held_out=True),
        at("cpu", 35, 127, 2, timed=False, held_out=True),
    ),
)
