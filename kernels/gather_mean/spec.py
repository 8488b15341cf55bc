"""A feature gather fused with the mean over the sampled neighbours: the first half of a GraphSAGE layer."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("nodes", "rows", "fanout", "width")

SPEC = Spec(
    name="gather_mean",
    summary="out[i] = mean of table[ids[i][j]] over the ids that are not -1, zeros where there is none",
    axes=("nodes", "rows", "fanout", "width"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="table", role="input", shape=("nodes", "width"), touched="rows*fanout*width", constant=True),
        Tensor(name="ids", role="input", shape=("rows", "fanout"), dtype="int32", values=("padded:nodes",)),
        Tensor(name="out", role="output", shape=("rows", "width")),
        Size(name="nodes"),
        Size(name="rows"),
        Size(name="fanout"),
        Size(name="width"),
    ),
    flops="rows*fanout*width",
    default_baseline={"cuda": "production"},
    workloads=(
        # The three layers of a GraphSAGE at fanouts 15, 10, 5: features of 128 from a large table, then hidden rows of 256.
        at("cuda", "bfloat16", 8_000_000, 118_000, 5, 128),
        at("cuda", "bfloat16", 118_000, 13_000, 10, 256),
        at("cuda", "bfloat16", 13_000, 1024, 15, 256),
        at("cuda", "float16", 2_449_029, 118_000, 5, 100),
        at("cuda", "float32", 2_000_000, 60_000, 5, 128),
        at("cuda", "float16", 5000, 70, 4, 33, timed=False),
        at("cuda", "bfloat16", 3000, 111, 15, 100, timed=False),
        at("cuda", "float32", 1000, 65, 1, 7, timed=False),
        at("cuda", "bfloat16", 4_000_000, 300_000, 10, 128, held_out=True),
        at("cuda", "float16", 1_000_000, 50_000, 20, 256, held_out=True),
        at("cuda", "float32", 1001, 77, 3, 129, timed=False, held_out=True),
        at("cpu", "float16", 400_000, 60_000, 5, 128),
        at("cpu", "float32", 200_000, 10_000, 10, 64),
        at("cpu", "bfloat16", 100_000, 13_000, 5, 100),
        at("cpu", "float16", 700, 70, 4, 33, timed=False),
        at("cpu", "bfloat16", 900, 111, 15, 100, timed=False),
        at("cpu", "float32", 1000, 65, 1, 7, timed=False),
        at("cpu", "float16", 200_000, 20_000, 8, 100, held_out=True),
        at("cpu", "float32", 1001, 77, 3, 129, timed=False, held_out=True),
    ),
)
