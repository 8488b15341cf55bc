"""Loss of a classifier from its logits, each row's maximum and sum on the way."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, vocab: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "vocab": vocab}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="cross_entropy",
    summary="loss[row] = logsumexp(logits[row]) - logits[row][target[row]]",
    axes=("rows", "vocab"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="losses", role="output", shape=("rows",), dtype="float32"),
        Tensor(name="logits", role="input", shape=("rows", "vocab"), values=("ordinary",)),
        Tensor(name="targets", role="input", shape=("rows",), dtype="int32", values=("index:vocab",)),
        Size(name="rows"),
        Size(name="vocab"),
    ),
    flops="3*rows*vocab",
    workloads=(
        at("float32", 512, 8192),
        at("bfloat16", 256, 50304),
        at("bfloat16", 8192, 32000),
        at("bfloat16", 1024, 50257),
        at("float32", 3, 515, timed=False),
        at("bfloat16", 2, 2056, timed=False),
        at("float32", 1, 7, timed=False),
        at("bfloat16", 512, 32003, held_out=True),
    ),
)
