"""The product of two matrices of halves, summed in float32."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(rows: int, columns: int, inner: int, **more: bool) -> Workload:
    axes = {"rows": rows, "columns": columns, "inner": inner}
    return Workload(axes=axes, dtype="float16", devices=("cuda",), **more)


SPEC = Spec(
    name="half_product",
    summary="c = a @ b, summed in float32",
    axes=("rows", "columns", "inner"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="a", role="input", shape=("rows", "inner")),
        Tensor(name="b", role="input", shape=("inner", "columns"), constant=True),
        Tensor(name="c", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
        Size(name="inner"),
    ),
    flops="2*rows*columns*inner",
    workloads=(
        at(1000, 1544, 712),
        at(4096, 4096, 4096),
        at(1, 1, 1, timed=False),
        at(77, 131, 45, timed=False),
        at(129, 264, 72, timed=False),
        at(2000, 3080, 1032, held_out=True),
        at(2048, 8192, 2048, held_out=True),
        at(200, 67, 130, held_out=True, timed=False),
    ),
)
