from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="kernel",
    summary="sglang::bias_residual_add::Kernel<true>::run of bias_residual_add.cuh",
    axes=("out_0", "channels"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="out", role="output", shape=("out_0",)),
        Tensor(name="y", role="input", shape=("out_0",)),
        Tensor(name="h", role="input", shape=("out_0",)),
        Tensor(name="bias", role="input", shape=("channels",)),
        Size(name="channels"),
        Scalar(name="spatial", ctype="int64_t", value=1),
        Size(name="out_0"),
    ),
    build={
        "flags": ("-std=c++20", "-DSGL_CUDA_ARCH=900"),
        "include": ("include/include",),
        "binding": "sglang::bias_residual_add::Kernel<true>::run",
    },
    workloads=(
        Workload(axes={"out_0": 576, "channels": 64}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"out_0": 1310720, "channels": 320}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"out_0": 1536000, "channels": 1536}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"out_0": 16777216, "channels": 1024}, dtype="bfloat16", devices=("cuda",)),
    ),
)
