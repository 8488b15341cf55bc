"""An activation over a flat array, bfloat16 as plain uint16_t."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype, rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_gelu",
    summary="y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    axes=("rows", "columns"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="12*rows*columns",
    default_baseline={"cpu": "baseline"},
    workloads=(
        at("float32", 1024, 4096),
        at("bfloat16", 64, 4096),
        at("float32", 1, 1, timed=False),
        at("bfloat16", 3, 37, timed=False),
    ),
)
