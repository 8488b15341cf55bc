"""The simplest activation: one input, one output, no rows."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, elements: int, **more: bool) -> Workload:
    return Workload(axes={"elements": elements}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="relu_squared",
    summary="y = max(x, 0)^2",
    axes=("elements",),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("elements",), values=("ordinary", "zeros")),
        Tensor(name="y", role="output", shape=("elements",)),
        Size(name="elements"),
    ),
    flops="2*elements",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float32", 65536),
        at("bfloat16", 4194304),
        at("bfloat16", 268435456),
        at("float32", 1001, timed=False),
        at("bfloat16", 4096, timed=False),
        at("bfloat16", 1048576, held_out=True),
    ),
)
