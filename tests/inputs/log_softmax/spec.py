"""Log-probabilities of every token of a vocabulary, whose size divides by nothing: GPT-2's has 50257."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, vocabulary: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "vocabulary": vocabulary}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="log_softmax",
    summary="y = x - logsumexp(x) over each row",
    axes=("rows", "vocabulary"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "vocabulary"), values=("ordinary", "large", "outliers")),
        Tensor(name="y", role="output", shape=("rows", "vocabulary")),
        Size(name="rows"),
        Size(name="vocabulary"),
    ),
    flops="4*rows*vocabulary",
    workloads=(
        at("bfloat16", 1024, 50257),
        at("float32", 512, 30522),
        at("bfloat16", 4096, 1000),
        at("bfloat16", 8192, 1203),
        at("float32", 5, 129, timed=False),
        at("bfloat16", 3, 515, timed=False),
        at("bfloat16", 2, 2063, timed=False),
        at("bfloat16", 1, 7, timed=False),
        at("bfloat16", 512, 50265, held_out=True),
        at("float32", 1024, 28996, held_out=True),
        at("bfloat16", 16384, 999, held_out=True),
    ),
)
