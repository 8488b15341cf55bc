"""A running sum along each row: the inner loop carries a value and must stay in order."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float32", devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_running_sum",
    summary="y[r][c] = x[r][0] + ... + x[r][c]",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="rows*columns",
    workloads=(at(1024, 4096), at(64, 1024), at(1, 1, timed=False), at(3, 55, timed=False)),
)
