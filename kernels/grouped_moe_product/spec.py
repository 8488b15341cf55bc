"""The product of a mixture of experts: tokens sorted by expert, each with the weights of its own."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("rows", "experts", "n", "k", dtype="bfloat16")

SPEC = Spec(
    name="grouped_moe_product",
    summary="out[r] = x[r] . weights[e] transposed, for rows r from offsets[e] to offsets[e + 1]",
    axes=("rows", "experts", "n", "k"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "k")),
        Tensor(name="offsets", role="input", shape=("experts + 1",), dtype="int32", values=("offsets:rows",)),
        Tensor(name="weights", role="input", shape=("experts", "n", "k"), constant=True),
        Tensor(name="out", role="output", shape=("rows", "n")),
        Size(name="rows"),
        Size(name="experts"),
        Size(name="n"),
        Size(name="k"),
    ),
    requires=("0 - (k & 63)",),
    flops="2*rows*n*k",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Both products of Qwen3-30B-A3B (128 experts, 8 a token); calls of the public profile that README names, a step of decoding counts as much.
        at("cuda", 64, 128, 1536, 2048, weight=48),
        at("cuda", 19200, 128, 1536, 2048, weight=48),
        at("cuda", 33560, 128, 2048, 768, weight=80),
        at("cuda", 7, 3, 70, 64, timed=False),
        at("cuda", 75, 4, 33, 192, timed=False),
        at("cuda", 16, 128, 2048, 768, weight=48, held_out=True),
        at("cuda", 33560, 128, 1536, 2048, weight=80, held_out=True),
        at("cuda", 41, 5, 130, 128, timed=False, held_out=True),
        at("cpu", 32, 8, 2048, 2048, weight=1),
        at("cpu", 96, 16, 512, 768, weight=1),
        at("cpu", 7, 3, 70, 64, timed=False),
        at("cpu", 75, 4, 33, 192, timed=False),
        at("cpu", 64, 4, 1536, 1024, weight=1, held_out=True),
        at("cpu", 41, 5, 130, 128, timed=False, held_out=True),
    ),
)
