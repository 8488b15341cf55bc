from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="topksumkernel",
    summary="sglang::TopkSumKernel<256, false>::run of topk_sum.cuh",
    axes=("in__0", "in__2"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="in_", role="input", shape=("in__0", "8", "in__2"), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("in__0", "in__2")),
        Size(name="in__0"),
        Size(name="in__2"),
    ),
    build={
        "flags": ("-std=c++20", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=900"),
        "include": ("include", "include/more_0"),
        "binding": "sglang::TopkSumKernel<256, false>::run",
    },
    workloads=(
        Workload(axes={"in__0": 1, "in__2": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"in__0": 17, "in__2": 2048}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"in__0": 512, "in__2": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"in__0": 4096, "in__2": 4096}, dtype="bfloat16", devices=("cuda",)),
    ),
)
