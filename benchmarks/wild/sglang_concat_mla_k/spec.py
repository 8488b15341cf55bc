from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="concatmlakkernel",
    summary="sglang::ConcatMlaKKernel::run of concat_mla.cuh",
    axes=("k_0",),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="k", role="output", shape=("k_0", "128", "192")),
        Tensor(name="k_nope", role="input", shape=("k_0", "128", "128")),
        Tensor(name="k_rope", role="input", shape=("k_0", "1", "64")),
        Size(name="k_0"),
    ),
    build={
        "flags": ("-DSGL_CUDA_ARCH=900", "--expt-relaxed-constexpr", "-std=c++20"),
        "include": ("include",),
        "binding": "sglang::ConcatMlaKKernel::run",
    },
    workloads=(
        Workload(axes={"k_0": 1}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"k_0": 7}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"k_0": 64}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"k_0": 300}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"k_0": 2048}, dtype="bfloat16", devices=("cuda",)),
    ),
)
