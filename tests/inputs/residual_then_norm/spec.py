"""A residual sum and its RMS norm, as two operations that a framework runs one after the other."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="residual_then_norm",
    summary="sum = x + residual; y = sum / sqrt(mean(sum^2) + eps) * weight, each row for itself",
    axes=("rows", "columns"),
    dtypes=("float16", "float32"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="residual", role="input", shape=("rows", "columns"), values=("ordinary",)),
        Tensor(name="weight", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="sum", role="output", shape=("rows", "columns")),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Size(name="rows"),
        Size(name="columns"),
        Scalar(name="eps", value=1e-5),
    ),
    flops="5*rows*columns",
    workloads=(
        at("float16", 256, 4096),
        at("float32", 4096, 1024),
        at("float16", 16384, 8192),
        at("float16", 3, 515, timed=False),
        at("float32", 2, 1028, timed=False),
        at("float16", 2, 4096, timed=False),
        at("float16", 384, 7168, held_out=True),
    ),
)
