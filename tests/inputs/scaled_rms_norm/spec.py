"""RMS norm of each row, with a weight, as a serving engine writes it."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(tokens: int, hidden: int, **more: bool) -> Workload:
    axes = {"tokens": tokens, "hidden": hidden}
    return Workload(axes=axes, dtype="float16", devices=("cuda",), **more)


SPEC = Spec(
    name="scaled_rms_norm",
    summary="out = in / sqrt(mean(in^2) + eps) * weight, each row for itself",
    axes=("tokens", "hidden"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="in", role="input", shape=("tokens", "hidden"), values=("ordinary", "outliers")),
        Tensor(name="weight", role="input", shape=("hidden",), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("tokens", "hidden")),
        Size(name="tokens"),
        Size(name="hidden"),
        Scalar(name="eps", value=1e-5),
    ),
    flops="4*tokens*hidden",
    default_baseline={"cuda": "plain"},
    workloads=(
        at(128, 5120),
        at(2048, 4096),
        at(16384, 8192),
        at(3, 515, timed=False),
        at(2, 2048, timed=False),
        at(256, 11008, held_out=True),
    ),
)
