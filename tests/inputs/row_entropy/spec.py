"""The entropy of a row's softmax, from its logits."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, vocab: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "vocab": vocab}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="row_entropy",
    summary="entropies[row] = -sum p log p with p = softmax(logits[row])",
    axes=("rows", "vocab"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="entropies", role="output", shape=("rows",), dtype="float32"),
        Tensor(name="logits", role="input", shape=("rows", "vocab"), values=("ordinary",)),
        Size(name="rows"),
        Size(name="vocab"),
    ),
    flops="5*rows*vocab",
    workloads=(
        at("float32", 512, 8192),
        at("bfloat16", 256, 50304),
        at("bfloat16", 8192, 32000),
        at("float32", 3, 515, timed=False),
        at("bfloat16", 2, 2056, timed=False),
        at("float32", 1, 7, timed=False),
        at("bfloat16", 1024, 50257, held_out=True),
    ),
)
