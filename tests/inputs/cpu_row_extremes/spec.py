"""Three reductions of each row at once."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype, rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_row_extremes",
    summary="the sum of squares, the largest and the smallest element of each row",
    axes=("rows", "columns"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="squares", role="output", shape=("rows",), dtype="float32"),
        Tensor(name="largest", role="output", shape=("rows",), dtype="float32"),
        Tensor(name="smallest", role="output", shape=("rows",), dtype="float32"),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="4*rows*columns",
    workloads=(
        at("float32", 2048, 4096),
        at("float16", 128, 4096),
        at("float32", 1, 1, timed=False),
        at("float16", 9, 100, timed=False),
    ),
)
