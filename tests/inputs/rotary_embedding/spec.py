"""Rotary position embedding of queries, halves rotated against each other, in place."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, heads: int, head_dim: int, **more: bool) -> Workload:
    axes = {"tokens": tokens, "heads": heads, "head_dim": head_dim, "positions": 4096}
    if more.get("timed", True) is False:
        axes["positions"] = 64
    return Workload(axes=axes, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="rotary_embedding",
    summary="query[t, h] is rotated by the angles of position[t]; cache holds cos then sin for half the head",
    axes=("tokens", "heads", "head_dim", "positions"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="position", role="input", shape=("tokens",), dtype="int64", values=("index:positions",)),
        Tensor(name="query", role="inout", shape=("tokens", "heads", "head_dim"), values=("ordinary",)),
        Tensor(
            name="cache",
            role="input",
            shape=("positions", "head_dim"),
            dtype="float32",
            values=("range:-1:1",),
            touched="tokens*head_dim",
        ),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="head_dim"),
    ),
    flops="3*tokens*heads*head_dim",
    workloads=(
        at("float16", 64, 32, 128),
        at("bfloat16", 1024, 32, 128),
        at("float16", 8192, 64, 128),
        at("float16", 3, 5, 64, timed=False),
        at("bfloat16", 2, 3, 30, timed=False),
        at("float16", 512, 40, 128, held_out=True),
    ),
)
