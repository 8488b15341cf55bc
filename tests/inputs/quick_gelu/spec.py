"""The activation of CLIP; the source hides its launches in a macro."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, d: int, **more: bool) -> Workload:
    return Workload(axes={"tokens": tokens, "d": d}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="quick_gelu",
    summary="out = x * sigmoid(1.702 x)",
    axes=("tokens", "d"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="out", role="output", shape=("tokens", "d")),
        Tensor(name="input", role="input", shape=("tokens", "d")),
        Size(name="tokens"),
        Size(name="d"),
    ),
    flops="5*tokens*d",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float16", 257, 4096),
        at("bfloat16", 1024, 5120),
        at("bfloat16", 16384, 8192),
        at("float16", 3, 515, timed=False),
        at("bfloat16", 4, 1024, timed=False),
        at("float16", 1, 2, timed=False),
        at("float16", 577, 3072, held_out=True),
    ),
)
