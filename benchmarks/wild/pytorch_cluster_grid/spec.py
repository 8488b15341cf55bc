from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="grid_cuda",
    summary="grid_cuda of grid_cuda.cu",
    axes=("pos_0",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="pos", role="input", shape=("pos_0", "3")),
        Tensor(name="size", role="input", shape=("3",)),
        Tensor(name="optional_start", role="input", shape=("3",)),
        Tensor(name="optional_end", role="input", shape=("3",)),
        Tensor(name="out", role="output", shape=("pos_0",), dtype="int64"),
        Size(name="pos_0"),
    ),
    build={"include": ("include/cuda", "include")},
    workloads=(
        Workload(axes={"pos_0": 100}, dtype="float32", devices=("cuda",)),
        Workload(axes={"pos_0": 5000}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"pos_0": 2000000}, dtype="float32", devices=("cuda",)),
    ),
)
