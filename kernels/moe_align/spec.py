"""Pairs of token and expert in the order of experts, each expert's run padded to whole blocks: what a grouped product of a MoE walks by."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "topk", "experts", "block", dtype="int32")
BLOCKS = "(tokens*topk+experts*(block-1)+block-1)//block"

SPEC = Spec(
    name="moe_align",
    summary="sorted = places of ids by expert, in their order, each run filled up to whole blocks with tokens*topk; block_expert = the expert of each block, -1 behind; total = how far runs reach",
    axes=("tokens", "topk", "experts", "block"),
    dtypes=("int32",),
    arguments=(
        Tensor(name="ids", role="input", shape=("tokens", "topk"), dtype="int32", values=("index:experts",)),
        Tensor(name="sorted", role="output", shape=(f"{BLOCKS}*block",), dtype="int32"),
        Tensor(name="block_expert", role="output", shape=(BLOCKS,), dtype="int32"),
        Tensor(name="total", role="output", shape=("1",), dtype="int32"),
        Size(name="tokens"),
        Size(name="topk"),
        Size(name="experts"),
        Size(name="block"),
    ),
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names.
        at("cuda", 1, 8, 128, 128, weight=2352),
        at("cuda", 520, 8, 128, 128, weight=94),
        at("cuda", 2044, 8, 128, 128, weight=94),
        at("cuda", 8192, 8, 128, 128, weight=1598),
        at("cuda", 37, 3, 9, 16, timed=False),
        at("cuda", 700, 2, 33, 8, timed=False),
        at("cuda", 1019, 8, 128, 128, weight=94, held_out=True),
        at("cuda", 3936, 8, 128, 128, weight=94, held_out=True),
        at("cuda", 50, 8, 64, 64, timed=False, held_out=True),
        at("cpu", 8192, 8, 128, 128, weight=1),
        at("cpu", 64, 8, 128, 128, weight=1),
        at("cpu", 37, 3, 9, 16, timed=False),
        at("cpu", 700, 2, 33, 8, timed=False),
        at("cpu", 520, 8, 128, 128, weight=1, held_out=True),
        at("cpu", 50, 8, 64, 64, timed=False, held_out=True),
    ),
)
