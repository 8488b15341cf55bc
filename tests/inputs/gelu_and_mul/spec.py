"""The gated activation of Gemma: gelu (tanh form) of one half of the row times the other half."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, hidden: int, **more: bool) -> Workload:
    return Workload(axes={"tokens": tokens, "hidden": hidden}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="gelu_and_mul",
    summary="out = gelu_tanh(input[:, :hidden]) * input[:, hidden:]",
    axes=("tokens", "hidden"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "2*hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden")),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    flops="12*tokens*hidden",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float16", 32, 6912),
        at("bfloat16", 256, 9216),
        at("bfloat16", 8192, 9216),
        at("float16", 3, 129, timed=False),
        at("bfloat16", 5, 264, timed=False),
        at("float16", 2, 2048, timed=False),
        at("float16", 64, 14336, held_out=True),
    ),
)
