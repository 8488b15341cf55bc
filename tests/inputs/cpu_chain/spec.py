"""An elementwise chain with a vector along each axis, as one flat loop with division and remainder."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float32", devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_chain",
    summary="y = sigmoid(x + bias[column]) * gate[row] + residual",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="bias", role="input", shape=("columns",)),
        Tensor(name="gate", role="input", shape=("rows",)),
        Tensor(name="residual", role="input", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="7*rows*columns",
    workloads=(at(1024, 4096), at(32, 2048), at(1, 1, timed=False), at(7, 129, timed=False)),
)
