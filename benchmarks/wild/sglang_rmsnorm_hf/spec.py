from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="hfrmsnormkernel",
    summary="sglang::HFRMSNormKernel<4096, false, {T}>::run of rmsnorm_hf.cuh",
    axes=("input_0",),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="input", role="input", shape=("input_0", "4096")),
        Tensor(name="weight", role="input", shape=("4096",)),
        Tensor(name="output", role="output", shape=("input_0", "4096")),
        Scalar(name="eps", ctype="float", value=1e-05),
        Size(name="input_0"),
    ),
    build={
        "flags": ("-DSGL_CUDA_ARCH=900", "--expt-relaxed-constexpr"),
        "include": ("include", "include/more_0"),
        "binding": {
            "float16": "sglang::HFRMSNormKernel<4096, false, half>::run",
            "bfloat16": "sglang::HFRMSNormKernel<4096, false, __nv_bfloat16>::run",
        },
    },
    workloads=(
        Workload(axes={"input_0": 16}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_0": 16}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 1024}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_0": 1024}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"input_0": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 4096}, dtype="bfloat16", devices=("cuda",)),
    ),
)
