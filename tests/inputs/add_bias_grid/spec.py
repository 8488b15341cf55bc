"""A bias and a residual, on a grid of two dimensions."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float16", devices=("cuda",), **more)


SPEC = Spec(
    name="add_bias_grid",
    summary="out = in + bias + residual",
    axes=("rows", "columns"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="in", role="input", shape=("rows", "columns"), values=("ordinary",)),
        Tensor(name="residual", role="input", shape=("rows", "columns"), values=("ordinary",)),
        Tensor(name="bias", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="2*rows*columns",
    workloads=(
        at(64, 4096),
        at(2048, 5120),
        at(16384, 8192),
        at(3, 515, timed=False),
        at(5, 1024, timed=False),
        at(256, 12288, held_out=True),
    ),
)
