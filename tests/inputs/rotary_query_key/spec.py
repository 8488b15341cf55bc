"""Rotary position embedding of queries and keys, in place, as serving engines write it: a function in a function in a loop."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, heads: int, kv_heads: int, head_dim: int, **more: bool) -> Workload:
    positions = 4096 if more.get("timed", True) else 64
    axes = {"tokens": tokens, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "positions": positions}
    return Workload(axes=axes, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="rotary_query_key",
    summary="each head of query[t] and key[t] is rotated by the angles of positions[t], halves against each other",
    axes=("tokens", "heads", "kv_heads", "head_dim", "positions"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="positions", role="input", shape=("tokens",), dtype="int64", values=("index:positions",)),
        Tensor(name="query", role="inout", shape=("tokens", "heads", "head_dim"), values=("ordinary",)),
        Tensor(name="key", role="inout", shape=("tokens", "kv_heads", "head_dim"), values=("ordinary",)),
        Tensor(
            name="cache",
            role="input",
            shape=("positions", "head_dim"),
            values=("range:-1:1",),
            touched="tokens*head_dim",
        ),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="kv_heads"),
        Size(name="head_dim"),
        Scalar(name="is_neox", ctype="int64_t", value=1),
    ),
    flops="3*tokens*(heads+kv_heads)*head_dim",
    workloads=(
        at("bfloat16", 64, 32, 8, 128),
        at("float16", 1024, 32, 8, 128),
        at("bfloat16", 8192, 64, 8, 128),
        at("float16", 3, 5, 2, 64, timed=False),
        at("bfloat16", 2, 3, 1, 30, timed=False),
        at("bfloat16", 512, 40, 8, 128, held_out=True),
    ),
)
