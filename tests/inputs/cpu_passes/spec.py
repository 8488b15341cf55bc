"""Three elementwise operations, each a pass of its own over the whole tensor."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float32", devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_passes",
    summary="y = max(x * gain[column], 0) + residual",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="gain", role="input", shape=("columns",)),
        Tensor(name="residual", role="input", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="3*rows*columns",
    workloads=(at(2048, 4096), at(32, 2048), at(1, 1, timed=False), at(7, 129, timed=False)),
)
