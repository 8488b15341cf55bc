"""Layer norm with weight and bias."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="layer_norm",
    summary="y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, each row for itself",
    axes=("rows", "columns"),
    dtypes=("float16", "float32"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="weight", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="bias", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
        Scalar(name="eps", value=1e-5),
    ),
    flops="8*rows*columns",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float16", 128, 5120),
        at("float16", 2048, 1024),
        at("float32", 512, 4096),
        at("float16", 16384, 8192),
        at("float16", 3, 515, timed=False),
        at("float32", 2, 1028, timed=False),
        at("float16", 2, 4096, timed=False),
        at("float16", 256, 12288, held_out=True),
    ),
)
