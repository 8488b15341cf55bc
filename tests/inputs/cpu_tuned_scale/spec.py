"""A kernel that leaves nothing to gain: threads and vectors by hand."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(count, timed=True):
    return Workload(axes={"count": count}, dtype="float32", devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_tuned_scale",
    summary="y = factor * x",
    axes=("count",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("count",)),
        Tensor(name="y", role="output", shape=("count",)),
        Size(name="count"),
        Scalar(name="factor", value=3.0),
    ),
    flops="count",
    workloads=(at(1 << 24), at(1 << 16), at(1, timed=False), at(1023, timed=False)),
)
