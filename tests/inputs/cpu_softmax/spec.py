"""Softmax of each row in three passes over the row."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype, rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_softmax",
    summary="y = exp(x - max) / sum(exp(x - max)) along each row",
    axes=("rows", "columns"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="5*rows*columns",
    workloads=(
        at("float32", 2048, 2048),
        at("float16", 128, 2048),
        at("float32", 1, 1, timed=False),
        at("float16", 5, 333, timed=False),
    ),
)
