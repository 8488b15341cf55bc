"""Softmax over the last axis, the maximum and the sum in one pass."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="online_softmax",
    summary="y = softmax(x), each row for itself",
    axes=("rows", "columns"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers", "zeros")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="6*rows*columns",
    workloads=(
        at("float16", 1024, 4096),
        at("float32", 64, 50304),
        at("float16", 8192, 32000),
        at("float32", 3, 515, timed=False),
        at("float16", 2, 2056, timed=False),
        at("float32", 1, 7, timed=False),
        at("float16", 512, 50257, held_out=True),
    ),
)
