from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="fusedaddrmsnormkernel",
    summary="sglang::FusedAddRMSNormKernel<false, {T}>::run of fused_add_rmsnorm.cuh",
    axes=("input_0", "input_1"),
    dtypes=("bfloat16", "float16"),
    arguments=(
        Tensor(name="input", role="inout", shape=("input_0", "input_1")),
        Tensor(name="residual", role="inout", shape=("input_0", "input_1")),
        Tensor(name="weight", role="input", shape=("input_1",)),
        Scalar(name="eps", ctype="float", value=1e-06),
        Size(name="input_0"),
        Size(name="input_1"),
    ),
    build={
        "flags": ("-DSGL_CUDA_ARCH=900", "--expt-relaxed-constexpr", "-std=c++20"),
        "include": ("include",),
        "binding": {
            "bfloat16": "sglang::FusedAddRMSNormKernel<false, __nv_bfloat16>::run",
            "float16": "sglang::FusedAddRMSNormKernel<false, half>::run",
        },
    },
    workloads=(
        Workload(axes={"input_0": 1, "input_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 1, "input_1": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 17, "input_1": 2048}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 17, "input_1": 2048}, dtype="float16", devices=("cuda",), timed=False),
        Workload(axes={"input_0": 33, "input_1": 8192}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 33, "input_1": 8192}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_0": 512, "input_1": 4096}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"input_0": 512, "input_1": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 4096, "input_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 4096, "input_1": 4096}, dtype="float16", devices=("cuda",)),
    ),
)
