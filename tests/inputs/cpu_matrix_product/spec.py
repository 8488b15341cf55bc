"""The product of two matrices, as a textbook writes it."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows, columns, inner, timed=True, held_out=False):
    axes = {"rows": rows, "columns": columns, "inner": inner}
    return Workload(axes=axes, dtype="float32", devices=("cpu",), timed=timed, held_out=held_out)


SPEC = Spec(
    name="cpu_matrix_product",
    summary="c = a @ b",
    axes=("rows", "columns", "inner"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="a", role="input", shape=("rows", "inner")),
        Tensor(name="b", role="input", shape=("inner", "columns")),
        Tensor(name="c", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
        Size(name="inner"),
    ),
    flops="2*rows*columns*inner",
    workloads=(
        at(96, 128, 64),
        at(256, 256, 256),
        at(1, 1, 1, timed=False),
        at(5, 77, 3, timed=False),
        at(33, 17, 40, timed=False),
        at(200, 136, 72, held_out=True),
    ),
)
