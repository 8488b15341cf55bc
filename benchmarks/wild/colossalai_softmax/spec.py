from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="softmax",
    summary="softmax of softmax.py",
    axes=("input_0", "input_1"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="input", role="input", shape=("input_0", "input_1")),
        Tensor(name="out", role="output", shape=("input_0", "input_1")),
        Size(name="input_0"),
        Size(name="input_1"),
    ),
    workloads=(
        Workload(axes={"input_0": 64, "input_1": 1024}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_0": 77, "input_1": 1000}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 4096, "input_1": 2048}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_0": 8192, "input_1": 8192}, dtype="float16", devices=("cuda",)),
    ),
)
