"""Layer norm with weight and bias that also hands out the mean of each row."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, columns: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "columns": columns}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="thread_layer_norm",
    summary="y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, and mean(x), each row for itself",
    axes=("rows", "columns"),
    dtypes=("float16", "float32"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), values=("ordinary", "outliers")),
        Tensor(name="weight", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="bias", role="input", shape=("columns",), values=("ordinary",)),
        Tensor(name="y", role="output", shape=("rows", "columns")),
        Tensor(name="mean", role="output", shape=("rows",), dtype="float32"),
        Size(name="rows"),
        Size(name="columns"),
        Scalar(name="eps", value=1e-5),
    ),
    flops="8*rows*columns",
    workloads=(
        at("float16", 1024, 4096),
        at("float32", 4096, 1024),
        at("float16", 8192, 2048),
        at("float16", 3, 515, timed=False),
        at("float32", 2, 1028, timed=False),
        at("float16", 512, 8192, held_out=True),
    ),
)
