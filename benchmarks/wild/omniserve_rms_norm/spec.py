from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm",
    summary="rms_norm of layernorm_kernels.cu",
    axes=("out_0", "out_1"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="out", role="output", shape=("out_0", "out_1")),
        Tensor(name="input", role="input", shape=("out_0", "out_1")),
        Tensor(name="weight", role="input", shape=("out_1",)),
        Scalar(name="epsilon", ctype="float", value=1e-06),
        Scalar(name="use_quant", ctype="int64_t", value=0),
        Size(name="out_0"),
        Size(name="out_1"),
    ),
    build={
        "include": ("include",),
        "flags": (
            "-DENABLE_BF16",
            "-U__CUDA_NO_HALF_OPERATORS__",
            "-U__CUDA_NO_HALF_CONVERSIONS__",
            "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
        ),
    },  # as its setup.py
    workloads=(
        Workload(axes={"out_0": 1, "out_1": 4096}, dtype="float16", devices=("cuda",)),
        Workload(axes={"out_0": 33, "out_1": 1000}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"out_0": 512, "out_1": 5120}, dtype="float16", devices=("cuda",)),
        Workload(axes={"out_0": 4096, "out_1": 8192}, dtype="float16", devices=("cuda",)),
    ),
)
