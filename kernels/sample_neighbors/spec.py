"""One hop of neighbourhood sampling without replacement, as SALIENT, PyTorch Geometric and GraphBolt do it."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("nodes", "edges", "rows", "fanout", dtype="int32")

SPEC = Spec(
    name="sample_neighbors",
    summary="picked[i] = min(degree, fanout) neighbours of frontier[i], every subset of positions equally likely",
    axes=("nodes", "edges", "rows", "fanout"),
    dtypes=("int32",),
    arguments=(
        Tensor(
            name="rowptr", role="input", shape=("nodes + 1",), dtype="int64", values=("offsets:edges",),
            touched="2*rows", constant=True,
        ),
        Tensor(
            name="col", role="input", shape=("edges",), values=("index:nodes",), touched="rows*fanout", constant=True
        ),
        Tensor(name="frontier", role="input", shape=("rows",), values=("padded:nodes",)),
        Tensor(name="seed", role="input", shape=("1",), dtype="int64", values=("bits",)),
        Tensor(name="picked", role="output", shape=("rows", "fanout")),
        Size(name="nodes"),
        Size(name="edges"),
        Size(name="rows"),
        Size(name="fanout"),
    ),
    default_baseline={"cuda": "production", "cpu": "production"},
    workloads=(
        # Three hops of 1,024 seeds on a graph as ogbn-papers100M: 1,024, 13,000 and 118,000 rows.
        at("cuda", 4_000_000, 116_000_000, 1024, 15),
        at("cuda", 4_000_000, 116_000_000, 13_000, 10),
        at("cuda", 4_000_000, 116_000_000, 118_000, 5),
        at("cuda", 4_000_000, 116_000_000, 1_200_000, 15),
        at("cuda", 4096, 131_072, 4096, 10, timed=False),
        at("cuda", 2048, 65_536, 2048, 15, timed=False),
        at("cuda", 8, 1 << 17, 33, 5, timed=False),
        at("cuda", 50_000, 750_000, 60, 10, timed=False),
        at("cuda", 1, 120_000, 7, 20, timed=False),
        at("cuda", 4_000_000, 116_000_000, 60_000, 5, held_out=True),
        at("cuda", 4_000_000, 116_000_000, 400_000, 20, held_out=True),
        at("cuda", 3000, 100_000, 3000, 7, timed=False, held_out=True),
        at("cuda", 70_000, 700_000, 40, 5, timed=False, held_out=True),
        at("cpu", 1 << 20, 1 << 24, 1 << 19, 15),
        at("cpu", 200_000, 3_000_000, 1024, 15),
        at("cpu", 200_000, 3_000_000, 13_000, 10),
        at("cpu", 4096, 131_072, 4096, 10, timed=False),
        at("cpu", 2048, 65_536, 2048, 15, timed=False),
        at("cpu", 8, 1 << 17, 33, 5, timed=False),
        at("cpu", 50_000, 750_000, 60, 10, timed=False),
        at("cpu", 1, 120_000, 7, 20, timed=False),
        at("cpu", 200_000, 3_000_000, 60_000, 5, held_out=True),
        at("cpu", 3000, 100_000, 3000, 7, timed=False, held_out=True),
        at("cpu", 70_000, 700_000, 40, 5, timed=False, held_out=True),
    ),
)  # fmt: skip
