"""Rotary embedding in place from the tokens' positions."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(tokens, heads, half, timed=True):
    return Workload(
        axes={"tokens": tokens, "heads": heads, "half": half}, dtype="float32", devices=("cpu",), timed=timed
    )


SPEC = Spec(
    name="cpu_rotary_positions",
    summary="x1, x2 = x1 cos - x2 sin, x2 cos + x1 sin with angle position * frequency, in place",
    axes=("tokens", "heads", "half"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="inout", shape=("tokens", "heads", "2*half")),
        Tensor(name="position", role="input", shape=("tokens",), dtype="int32", values=("integers:0:512",)),
        Tensor(name="frequency", role="input", shape=("half",), dtype="float32", values=("range:0:1",)),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="half"),
    ),
    flops="6*tokens*heads*half",
    workloads=(at(512, 32, 64), at(1, 1, 1, timed=False), at(3, 5, 33, timed=False)),
)
