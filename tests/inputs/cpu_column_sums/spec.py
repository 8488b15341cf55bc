"""Sums and maxima down the columns of a matrix: one column after the other, and row by row."""

from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="cpu_column_sums",
    summary="dbias = the sum, colmax = the largest of each column",
    axes=("rows", "cols"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="dout", role="input", shape=("rows", "cols")),
        Tensor(name="dbias", role="output", shape=("cols",)),
        Tensor(name="colmax", role="output", shape=("cols",)),
        Size(name="rows"),
        Size(name="cols"),
    ),
    flops="2*rows*cols",
    workloads=(
        Workload(axes={"rows": 2048, "cols": 4096}, dtype="float32", devices=("cpu",), timed=True),
        Workload(axes={"rows": 64, "cols": 512}, dtype="float32", devices=("cpu",), timed=True),
        Workload(axes={"rows": 1, "cols": 1}, dtype="float32", devices=("cpu",), timed=False),
        Workload(axes={"rows": 5, "cols": 77}, dtype="float32", devices=("cpu",), timed=False),
    ),
)
