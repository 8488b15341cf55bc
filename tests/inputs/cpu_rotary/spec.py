"""Rotary embedding in place, halves of a head rotated against each other."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype, tokens, heads, half, timed=True):
    return Workload(axes={"tokens": tokens, "heads": heads, "half": half}, dtype=dtype, devices=("cpu",), timed=timed)


SPEC = Spec(
    name="cpu_rotary",
    summary="x1, x2 = x1 cos - x2 sin, x2 cos + x1 sin for the two halves of every head, in place",
    axes=("tokens", "heads", "half"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="x", role="inout", shape=("tokens", "heads", "2*half")),
        Tensor(name="cosine", role="input", shape=("tokens", "half"), dtype="float32", values=("range:-1:1",)),
        Tensor(name="sine", role="input", shape=("tokens", "half"), dtype="float32", values=("range:-1:1",)),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="half"),
    ),
    flops="6*tokens*heads*half",
    workloads=(
        at("float32", 1024, 32, 64),
        at("float16", 256, 32, 64),
        at("float32", 1, 1, 1, timed=False),
        at("float16", 3, 5, 33, timed=False),
    ),
)
