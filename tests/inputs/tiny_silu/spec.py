"""SwiGLU's activation as SGLang calls it between the two projections of an MLP."""

from kernels.spec import Device, Dtype, Size, Spec, Tensor, Workload


def at(
    device: Device, dtype: Dtype, tokens: int, hidden: int, *, timed: bool = True, held_out: bool = False
) -> Workload:
    axes = {"tokens": tokens, "hidden": hidden}
    return Workload(axes=axes, dtype=dtype, devices=(device,), timed=timed, held_out=held_out)


SPEC = Spec(
    name="silu_and_mul",
    summary="out = silu(first half of the row) * second half, silu(x) = x / (1 + exp(-x))",
    axes=("tokens", "hidden"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "2*hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden")),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    # Per output element: negate, exp, add, divide, multiply.
    flops="5*tokens*hidden",
    workloads=(
        at("cpu", "float32", 2, 64),
        at("cpu", "float32", 4, 128),
        at("cpu", "float16", 2, 128),
        at("cpu", "bfloat16", 1, 173, timed=False),
        at("cpu", "float32", 3, 96, held_out=True),
    ),
)
