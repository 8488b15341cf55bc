"""Rows scaled to length one."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float32", devices=("cuda",), **more)


SPEC = Spec(
    name="l2_normalize",
    summary="y = x / max(|x|, eps), each row for itself; columns are a multiple of 4",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "tiny", "outliers")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
        Scalar(name="eps", value=1e-6),
    ),
    flops="3*rows*columns",
    workloads=(
        at(256, 4096),
        at(8192, 768),
        at(16384, 8192),
        at(3, 516, timed=False),
        at(2, 4096, timed=False),
        at(1000, 2048, held_out=True),
    ),
)
