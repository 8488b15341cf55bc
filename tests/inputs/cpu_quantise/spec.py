"""Dynamic int8 quantisation with a scale per row."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype, rows, columns, timed=True):
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_quantise",
    summary="scale = max |x| / 127 of the row (at least 1e-10), q = x / scale rounded to nearest",
    axes=("rows", "columns"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns")),
        Tensor(name="q", role="output", shape=("rows", "columns"), dtype="int8", ulps=1),
        Tensor(name="scale", role="output", shape=("rows",), dtype="float32"),
        Size(name="rows"),
        Size(name="columns"),
    ),
    flops="4*rows*columns",
    workloads=(
        at("float32", 256, 4096),
        at("bfloat16", 64, 4096),
        at("float32", 1, 3, timed=False),
        at("bfloat16", 6, 131, timed=False),
    ),
)
