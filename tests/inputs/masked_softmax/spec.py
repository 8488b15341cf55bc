"""Softmax of scaled rows plus a mask, in the plain steps in which a course teaches it."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype="float32", devices=("cuda",), **more)


SPEC = Spec(
    name="masked_softmax",
    summary="y = softmax(scale * x + mask), each row for itself, the mask for all rows alike",
    axes=("rows", "columns"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="mask", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
        Scalar(name="scale", value=0.125),
    ),
    flops="8*rows*columns",
    workloads=(
        at(512, 4096),
        at(64, 1024),
        at(16384, 4096),
        at(3, 517, timed=False),
        at(2, 1028, timed=False),
        at(256, 8192, held_out=True),
    ),
)
