"""Attention of one new token of each sequence over its cache of keys and values; query heads share them in groups."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(batch: int, heads_kv: int, group: int, length: int, **more: bool) -> Workload:
    axes = {"batch": batch, "heads_kv": heads_kv, "group": group, "length": length}
    return Workload(axes=axes, dtype="float16", devices=("cuda",), **more)


SPEC = Spec(
    name="decode_attention",
    summary="out = softmax(scale * query . keys) . values for one query of each head, over keys and values of its group's head",
    axes=("batch", "heads_kv", "group", "length"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="query", role="input", shape=("batch", "heads_kv", "group", "128")),
        Tensor(name="keys", role="input", shape=("batch", "heads_kv", "length", "128"), constant=True),
        Tensor(name="values", role="input", shape=("batch", "heads_kv", "length", "128"), constant=True),
        Tensor(name="out", role="output", shape=("batch", "heads_kv", "group", "128")),
        Size(name="batch"),
        Size(name="heads_kv"),
        Size(name="group"),
        Size(name="length"),
        Scalar(name="scale", value=0.0883883461356163),
    ),
    flops="4*batch*heads_kv*group*length*128",
    workloads=(
        at(1, 8, 8, 8192),
        at(64, 8, 8, 1024),
        at(16, 8, 4, 8192),
        at(1, 1, 1, 1, timed=False),
        at(3, 3, 5, 77, timed=False),
        at(2, 3, 17, 1001, timed=False),
        at(8, 4, 8, 4096, held_out=True),
        at(5, 8, 4, 3001, held_out=True),
        at(4, 8, 1, 2048, held_out=True),
    ),
)
