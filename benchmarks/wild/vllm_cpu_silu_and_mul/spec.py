from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="silu_and_mul",
    summary="silu_and_mul of activation.cpp",
    axes=("out_0", "out_1"),
    dtypes=("bfloat16", "float32"),
    arguments=(
        Tensor(name="out", role="output", shape=("out_0", "out_1")),
        Tensor(name="input", role="input", shape=("out_0", "2*out_1"), values=("ordinary",)),
        Size(name="out_0"),
        Size(name="out_1"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"out_0": 1, "out_1": 1024}, dtype="bfloat16", devices=("cpu",)),
        Workload(axes={"out_0": 1, "out_1": 1024}, dtype="float32", devices=("cpu",), held_out=True),
        Workload(axes={"out_0": 7, "out_1": 512}, dtype="bfloat16", devices=("cpu",)),
        Workload(axes={"out_0": 7, "out_1": 512}, dtype="float32", devices=("cpu",), timed=False),
        Workload(axes={"out_0": 83, "out_1": 2048}, dtype="bfloat16", devices=("cpu",), held_out=True),
        Workload(axes={"out_0": 83, "out_1": 2048}, dtype="float32", devices=("cpu",)),
        Workload(axes={"out_0": 2048, "out_1": 11008}, dtype="bfloat16", devices=("cpu",), timed=False),
        Workload(axes={"out_0": 2048, "out_1": 11008}, dtype="float32", devices=("cpu",)),
    ),
)
