"""Rotation of queries and keys by position and the write of keys and values into a paged cache, as engines call it before each attention."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "heads", "kv_heads", "head", "positions", "slots", dtype="bfloat16")

SPEC = Spec(
    name="rope_kv_write",
    summary="query is rotated in place; key_cache[slots[t]] = rotated key[t], value_cache[slots[t]] = value[t], nothing where slots[t] is -1",
    axes=("tokens", "heads", "kv_heads", "head", "positions", "slots"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="query", role="inout", shape=("tokens", "heads", "head")),
        Tensor(name="key", role="input", shape=("tokens", "kv_heads", "head")),
        Tensor(name="value", role="input", shape=("tokens", "kv_heads", "head")),
        Tensor(
            name="cos_sin",
            role="input",
            shape=("positions", "head"),
            dtype="float32",
            values=("range:-1:1",),
            touched="tokens*head",
            constant=True,
        ),
        Tensor(name="at", role="input", shape=("tokens",), dtype="int64", values=("index:positions",)),
        Tensor(name="slot", role="input", shape=("tokens",), dtype="int64", values=("distinct:slots",)),
        Tensor(name="key_cache", role="inout", shape=("slots", "kv_heads", "head"), touched="tokens*kv_heads*head"),
        Tensor(name="value_cache", role="inout", shape=("slots", "kv_heads", "head"), touched="tokens*kv_heads*head"),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="kv_heads"),
        Size(name="head"),
        Size(name="positions"),
        Size(name="slots"),
    ),
    flops="3*tokens*(heads+kv_heads)*head",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Tokens, heads and calls of the public profile that README names.
        at("cuda", 1, 32, 4, 128, 512, 512, weight=6580),
        at("cuda", 520, 64, 16, 128, 40960, 4096, weight=94),
        at("cuda", 2044, 64, 16, 128, 40960, 4096, weight=94),
        at("cuda", 8192, 32, 4, 128, 40960, 16384, weight=28),
        at("cuda", 3, 5, 3, 64, 33, 40, timed=False),
        at("cuda", 7, 2, 2, 30, 50, 21, timed=False),
        at("cuda", 1015, 64, 16, 128, 40960, 4096, weight=94, held_out=True),
        at("cuda", 4108, 32, 4, 128, 40960, 16384, weight=28, held_out=True),
        at("cuda", 5, 3, 1, 96, 64, 33, timed=False, held_out=True),
        at("cpu", 3200, 32, 4, 128, 8192, 4096, weight=1),
        at("cpu", 64, 32, 4, 128, 8192, 512, weight=1),
        at("cpu", 3, 5, 3, 64, 33, 40, timed=False),
        at("cpu", 7, 2, 2, 30, 50, 21, timed=False),
        at("cpu", 256, 16, 4, 128, 8192, 4096, weight=1, held_out=True),
        at("cpu", 5, 3, 1, 96, 64, 33, timed=False, held_out=True),
    ),
)
