from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="relu",
    summary="relu of relu.cu",
    axes=("out_0",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="out", role="output", shape=("out_0", "out_0")),
        Tensor(name="input", role="input", shape=("out_0", "out_0")),
        Size(name="out_0"),
    ),
    workloads=(Workload(axes={"out_0": 1024}, dtype="float32", devices=("cuda",)),),
)
