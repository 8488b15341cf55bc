from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="gatherpointsforwardcudakernellauncher",
    summary="GatherPointsForwardCUDAKernelLauncher of gather_points_cuda.cu",
    entry="GatherPointsForwardCUDAKernelLauncher",
    axes=("b", "c", "n", "npoints"),
    dtypes=("float32",),
    arguments=(
        Size(name="b"),
        Size(name="c"),
        Size(name="n"),
        Size(name="npoints"),
        Tensor(name="points", role="input", shape=("b", "c", "n")),
        Tensor(name="idx", role="input", shape=("b", "npoints"), dtype="int32", values=("index:n",)),
        Tensor(name="out", role="output", shape=("b", "c", "npoints")),
    ),
    build={
        "include": (
            "include",
            "include/more_0/cuda",
            "include/more_0",
        )
    },
    workloads=(
        Workload(axes={"b": 2, "c": 16, "n": 1000, "npoints": 77}, dtype="float32", devices=("cuda",)),
        Workload(
            axes={"b": 4, "c": 128, "n": 4096, "npoints": 1024}, dtype="float32", devices=("cuda",), held_out=True
        ),
        Workload(axes={"b": 8, "c": 64, "n": 16384, "npoints": 4096}, dtype="float32", devices=("cuda",)),
        Workload(axes={"b": 16, "c": 256, "n": 16384, "npoints": 4096}, dtype="float32", devices=("cuda",)),
    ),
)
