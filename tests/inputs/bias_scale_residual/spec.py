"""An elementwise chain with broadcasts along both axes."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="bias_scale_residual",
    summary="out = relu(x + bias[column]) * scale[row] + residual",
    axes=("rows", "columns"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary",)),
        Tensor(name="bias", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="scale", role="input", shape=("rows",), dtype="float32", values=("ordinary",)),
        Tensor(name="residual", role="input", shape=("rows", "columns"), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="4*rows*columns",
    workloads=(
        at("float32", 64, 4096),
        at("float16", 512, 8192),
        at("float16", 16384, 8192),
        at("float32", 3, 515, timed=False),
        at("float16", 5, 264, timed=False),
        at("float16", 100, 11008, held_out=True),
    ),
)
