"""RMS norm and rotary embedding of every head, a warp a head, written in small device functions."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, heads: int, head_dim: int, **more: bool) -> Workload:
    axes = {
        "tokens": tokens,
        "heads": heads,
        "head_dim": head_dim,
        "positions": 4096 if more.get("timed", True) else 64,
    }
    return Workload(axes=axes, dtype=dtype, devices=("cuda",), **more)


def table(name: str) -> Tensor:
    return Tensor(
        name=name,
        role="input",
        shape=("positions", "head_dim//2"),
        dtype="float32",
        values=("range:-1:1",),
        touched="tokens*(head_dim//2)",
    )


SPEC = Spec(
    name="head_norm_rope",
    summary="each head of each token: divided by its rms, times weight, neighbours rotated by the token's angles, in place",
    axes=("tokens", "heads", "head_dim", "positions"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="qk", role="inout", shape=("tokens", "heads", "head_dim")),
        Tensor(name="weight", role="input", shape=("head_dim",)),
        table("cos"),
        table("sin"),
        Tensor(name="positions", role="input", shape=("tokens",), dtype="int32", values=("index:positions",)),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="head_dim"),
        Scalar(name="eps", value=1e-6),
    ),
    flops="8*tokens*heads*head_dim",
    workloads=(
        at("bfloat16", 64, 32, 128),
        at("bfloat16", 2048, 32, 128),
        at("float16", 16384, 64, 128),
        at("bfloat16", 3, 5, 128, timed=False),
        at("float16", 1, 1, 94, timed=False),
        at("float16", 7, 3, 64, timed=False),
        at("bfloat16", 1000, 40, 128, held_out=True),
    ),
)
