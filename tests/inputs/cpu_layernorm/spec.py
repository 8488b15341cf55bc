"""Layer normalisation, one function call a row."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype, rows, width, timed=True):
    return Workload(axes={"rows": rows, "width": width}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_layernorm",
    summary="y = (x - mean) / sqrt(variance + eps) * gamma + beta along each row",
    axes=("rows", "width"),
    dtypes=("float32", "bfloat16", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "width")),
        Tensor(name="gamma", role="input", shape=("width",)),
        Tensor(name="beta", role="input", shape=("width",)),
        Tensor(name="y", role="output", shape=("rows", "width")),
        Size(name="rows"),
        Size(name="width"),
        Scalar(name="eps", value=1e-5),
    ),
    flops="8*rows*width",
    workloads=(
        at("float32", 4096, 1024),
        at("bfloat16", 256, 768),
        at("float16", 64, 1024),
        at("float32", 1, 17, timed=False),
        at("bfloat16", 4, 259, timed=False),
    ),
)
