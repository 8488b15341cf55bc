"""Dynamic quantisation of each row to int8 by its largest absolute value."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="quantize_rows",
    summary="scale[row] = max|x[row]| / 127; q = round(x / scale)",
    axes=("rows", "columns"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="q", role="output", shape=("rows", "columns"), dtype="int8", ulps=1),  # a tie may round either way
        Tensor(name="scale", role="output", shape=("rows",), dtype="float32"),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="3*rows*columns",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float16", 128, 4096),
        at("bfloat16", 1024, 8192),
        at("float16", 16384, 8192),
        at("float16", 3, 515, timed=False),
        at("bfloat16", 2, 2048, timed=False),
        at("float16", 256, 14336, held_out=True),
    ),
)
