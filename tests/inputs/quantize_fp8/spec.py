"""Static quantisation to fp8 by one scale for the whole tensor."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="quantize_fp8",
    summary="out = fp8(clamp(x * scale, -448, 448))",
    axes=("rows", "columns"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "large")),
        Tensor(name="scale", role="input", shape=("1",), dtype="float32", values=("range:0.5:2",)),
        Tensor(name="out", role="output", shape=("rows", "columns"), dtype="float8_e4m3fn"),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="2*rows*columns",
    workloads=(
        at("float16", 64, 4096),
        at("bfloat16", 1024, 8192),
        at("bfloat16", 16384, 8192),
        at("float16", 3, 515, timed=False),
        at("bfloat16", 4, 1024, timed=False),
        at("float16", 300, 5120, held_out=True),
    ),
)
