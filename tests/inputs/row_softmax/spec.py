"""Softmax over the last axis."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="row_softmax",
    summary="y = softmax(x), each row for itself",
    axes=("rows", "columns"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers", "zeros")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="5*rows*columns",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float32", 256, 4096),
        at("float16", 4096, 1024),
        at("float32", 32, 32000),
        at("float32", 16384, 4096),
        at("float32", 3, 515, timed=False),
        at("float16", 2, 2056, timed=False),
        at("float32", 1024, 8192, held_out=True),
    ),
)
