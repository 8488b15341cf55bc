"""Rows of a table picked by index, scaled, plus a position's row."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype, tokens, width, vocabulary, timed=True):
    axes = {"tokens": tokens, "width": width, "vocabulary": vocabulary}
    return Workload(axes=axes, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_embedding",
    summary="out[t] = table[index[t]] * factor + position[t]",
    axes=("tokens", "width", "vocabulary"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="table", role="input", shape=("vocabulary", "width"), touched="tokens*width"),
        Tensor(name="index", role="input", shape=("tokens",), dtype="int64", values=("index:vocabulary",)),
        Tensor(name="position", role="input", shape=("tokens", "width")),
        Tensor(name="out", role="output", shape=("tokens", "width")),
        Size(name="tokens"),
        Size(name="width"),
        Size(name="vocabulary"),
        Scalar(name="factor", value=2.5),
    ),
    flops="2*tokens*width",
    workloads=(
        at("float32", 2048, 2048, 8000),
        at("float16", 128, 1024, 1000),
        at("float32", 1, 1, 1, timed=False),
        at("float16", 5, 77, 3, timed=False),
    ),
)
