"""The backward pass of a mean over sampled neighbours: each row's gradient goes to the rows that it was made of."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("sources", "rows", "fanout", "width")

SPEC = Spec(
    name="scatter_mean_backward",
    summary="grad[s] = sum of grad_out[i] / (ids of row i that are not -1) over all i, j with ids[i][j] = s",
    axes=("sources", "rows", "fanout", "width"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="grad_out", role="input", shape=("rows", "width")),
        Tensor(name="ids", role="input", shape=("rows", "fanout"), dtype="int32", values=("padded:sources",)),
        Tensor(name="grad", role="output", shape=("sources", "width"), dtype="float32"),
        Size(name="sources"),
        Size(name="rows"),
        Size(name="fanout"),
        Size(name="width"),
    ),
    flops="rows*fanout*width + rows*width",
    default_baseline={"cuda": "production"},
    workloads=(
        # The two layers of a GraphSAGE at fanouts 15, 10, 5 that pass a gradient on.
        at("cuda", "bfloat16", 118_000, 13_000, 10, 256),
        at("cuda", "bfloat16", 13_000, 1024, 15, 256),
        at("cuda", "float32", 118_000, 13_000, 10, 256),
        at("cuda", "float16", 500_000, 118_000, 5, 128),
        at("cuda", "float16", 50, 70, 4, 33, timed=False),
        at("cuda", "bfloat16", 300, 111, 15, 100, timed=False),
        at("cuda", "float32", 1000, 65, 1, 7, timed=False),
        at("cuda", "bfloat16", 200_000, 20_000, 10, 128, held_out=True),
        at("cuda", "float16", 60_000, 6_000, 20, 256, held_out=True),
        at("cuda", "float32", 101, 77, 3, 129, timed=False, held_out=True),
        at("cpu", "float32", 120_000, 13_000, 10, 128),
        at("cpu", "float16", 13_000, 1024, 15, 128),
        at("cpu", "bfloat16", 20_000, 2_000, 10, 64),
        at("cpu", "float16", 50, 70, 4, 33, timed=False),
        at("cpu", "bfloat16", 300, 111, 15, 100, timed=False),
        at("cpu", "float32", 1000, 65, 1, 7, timed=False),
        at("cpu", "float32", 30_000, 4_000, 8, 100, held_out=True),
        at("cpu", "float16", 101, 77, 3, 129, timed=False, held_out=True),
        at("cpu", "bfloat16", 90, 70, 5, 65, timed=False, held_out=True),
    ),
)
