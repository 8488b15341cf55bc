"""A reduction of each row to one number."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float32", devices=("cuda",), **more)


SPEC = Spec(
    name="row_logsumexp",
    summary="y[row] = log(sum(exp(x[row])))",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="y", role="output", shape=("rows",)),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="3*rows*columns",
    workloads=(
        at(128, 4096),
        at(2048, 2048),
        at(16384, 8192),
        at(3, 515, timed=False),
        at(2, 4096, timed=False),
        at(512, 32000, held_out=True),
    ),
)
