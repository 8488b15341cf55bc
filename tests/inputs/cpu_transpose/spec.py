"""A transposition with a factor for each column: one side of it always walks down columns."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype, rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_transpose",
    summary="y[c][r] = x[r][c] * scale[c]",
    axes=("rows", "columns"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="scale", role="input", shape=("columns",), dtype="float32"),
        Tensor(name="y", role="output", shape=("columns", "rows")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="rows*columns",
    workloads=(
        at("float32", 2048, 4096), at("float16", 4096, 4096), at("float32", 64, 1024),
        at("float32", 1, 1, timed=False), at("float16", 33, 131, timed=False), at("float32", 5, 96, timed=False),
    ),
)  # fmt: skip
