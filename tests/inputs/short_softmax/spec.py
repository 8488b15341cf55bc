"""Softmax of rows that fit into the registers of a warp or a block."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="short_softmax",
    summary="y = softmax(x), each row for itself",
    axes=("rows", "columns"),
    dtypes=("float16", "float32"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="5*rows*columns",
    default_baseline={"cuda": "warp"},
    workloads=(
        at("float16", 4096, 128),
        at("float32", 16384, 256),
        at("float16", 65536, 512),
        at("float16", 8192, 1024),
        at("float16", 3, 60, timed=False),
        at("float32", 5, 127, timed=False),
        at("float16", 6, 512, timed=False),
        at("float16", 12, 1000, timed=False),
        at("float16", 32768, 1024, held_out=True),
    ),
)
