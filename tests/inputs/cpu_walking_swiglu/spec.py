"""A gated activation with pointers that walk, counted down; bfloat16 by way of a union."""

from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="cpu_walking_swiglu",
    summary="out = silu(gate) * up",
    axes=("tokens", "hidden"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="gate", role="input", shape=("tokens", "hidden")),
        Tensor(name="up", role="input", shape=("tokens", "hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden")),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    flops="6*tokens*hidden",
    workloads=(
        Workload(axes={"tokens": 1024, "hidden": 5632}, dtype="float32", devices=("cpu",), timed=True),
        Workload(axes={"tokens": 128, "hidden": 2816}, dtype="bfloat16", devices=("cpu",), timed=True),
        Workload(axes={"tokens": 1, "hidden": 1}, dtype="float32", devices=("cpu",), timed=False),
        Workload(axes={"tokens": 3, "hidden": 77}, dtype="bfloat16", devices=("cpu",), timed=False),
    ),
)
