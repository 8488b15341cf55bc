from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="layernorm_forward",
    summary="layernorm_forward of train_gpt2.c",
    axes=("b", "t", "c"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="out", role="output", shape=("b", "t", "c")),
        Tensor(name="mean", role="output", shape=("b", "t")),
        Tensor(name="rstd", role="output", shape=("b", "t")),
        Tensor(name="inp", role="input", shape=("b", "t", "c")),
        Tensor(name="weight", role="input", shape=("c",)),
        Tensor(name="bias", role="input", shape=("c",)),
        Size(name="b"),
        Size(name="t"),
        Size(name="c"),
    ),
    build={
        "language": "c",
        "include": ("include",),
        "binding": "layernorm_forward(out, mean, rstd, inp, weight, bias, b, t, c)",
    },
    workloads=(
        Workload(axes={"b": 3, "t": 17, "c": 131}, dtype="float32", devices=("cpu",)),
        Workload(axes={"b": 1, "t": 64, "c": 768}, dtype="float32", devices=("cpu",), held_out=True),
        Workload(axes={"b": 4, "t": 64, "c": 768}, dtype="float32", devices=("cpu",)),
        Workload(axes={"b": 8, "t": 1024, "c": 768}, dtype="float32", devices=("cpu",), timed=False),
        Workload(axes={"b": 2, "t": 1024, "c": 4096}, dtype="float32", devices=("cpu",)),
    ),
)
