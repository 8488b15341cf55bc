from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm",
    summary="rms_norm of rms_norm_cutlass.cu",
    axes=("bs",),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="output", role="output", shape=("bs", "4096")),
        Tensor(name="input", role="input", shape=("bs", "4096")),
        Tensor(name="weight", role="input", shape=("4096",)),
        Scalar(name="epsilon", ctype="float", value=1e-06),
        Size(name="bs"),
    ),
    build={
        "binding": {
            "float16": "rms_norm<half>(output, input, weight, bs, 4096, epsilon)",
            "bfloat16": "rms_norm<__nv_bfloat16>(output, input, weight, bs, 4096, epsilon)",
        }
    },
    workloads=(
        Workload(axes={"bs": 17}, dtype="float16", devices=("cuda",)),
        Workload(axes={"bs": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"bs": 17}, dtype="bfloat16", devices=("cuda",), timed=False),
    ),
)
