"""Softmax over the last axis, and the logarithm of what the exponentials add up to."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, rows: int, n: int, **more: bool) -> Workload:
    return Workload(axes={"rows": rows, "n": n}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="thread_softmax",
    summary="y = softmax(x), lse = logsumexp(x), each row for itself",
    axes=("rows", "n"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "n"), values=("ordinary", "outliers", "zeros")),
        Tensor(name="y", role="output", shape=("rows", "n")),
        Tensor(name="lse", role="output", shape=("rows",), dtype="float32"),
        Size(name="rows"),
        Size(name="n"),
    ),
    flops="5*rows*n",
    workloads=(
        at("float32", 4096, 1024),
        at("float16", 2048, 2048),
        at("float32", 512, 8192),
        at("float16", 32768, 128),
        at("float32", 3, 515, timed=False),
        at("float16", 2, 1032, timed=False),
        at("float32", 16384, 2048, held_out=True),
    ),
)
