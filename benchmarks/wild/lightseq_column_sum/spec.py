from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="launch_fuse_transpose_bias_kernel",
    summary="lightseq::cuda::launch_fuse_transpose_bias_kernel of general_kernels.cu",
    axes=("rows", "cols"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="inp", role="input", shape=("rows", "cols")),
        Tensor(name="out", role="output", shape=("cols",)),
        Size(name="rows"),
        Size(name="cols"),
    ),
    build={
        "include": (
            "include",
            "include/includes",
        ),
        "binding": "lightseq::cuda::launch_fuse_transpose_bias_kernel(inp, out, rows, cols, stream)",
    },
    workloads=(
        Workload(axes={"rows": 64, "cols": 1024}, dtype="float32", devices=("cuda",)),
        Workload(axes={"rows": 777, "cols": 1000}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"rows": 8192, "cols": 1024}, dtype="float32", devices=("cuda",)),
        Workload(axes={"rows": 16384, "cols": 4096}, dtype="float32", devices=("cuda",)),
    ),
)
