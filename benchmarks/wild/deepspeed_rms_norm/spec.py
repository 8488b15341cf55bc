from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="launch_rms_norm",
    summary="launch_rms_norm of rms_norm.cu",
    axes=("norm_output_0", "norm_output_1"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="norm_output", role="output", shape=("norm_output_0", "norm_output_1")),
        Tensor(name="vals", role="input", shape=("norm_output_0", "norm_output_1"), values=("ordinary",)),
        Tensor(name="gamma", role="input", shape=("norm_output_1",), values=("ordinary",)),
        Scalar(name="epsilon", ctype="float", value=1e-05),
        Size(name="norm_output_0"),
        Size(name="norm_output_1"),
    ),
    build={
        "flags": ("-DBF16_AVAILABLE",),
        "include": ("include/includes", "include/transformer/inference/includes"),
        "binding": {
            "float16": "launch_rms_norm<half>(norm_output, nullptr, vals, nullptr, gamma, epsilon, norm_output_0, norm_output_1, stream)",
            "bfloat16": "launch_rms_norm<__nv_bfloat16>(norm_output, nullptr, vals, nullptr, gamma, epsilon, norm_output_0, norm_output_1, stream)",
        },
    },
    workloads=(
        Workload(axes={"norm_output_0": 1, "norm_output_1": 4096}, dtype="float16", devices=("cuda",)),
        Workload(axes={"norm_output_0": 1, "norm_output_1": 4096}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"norm_output_0": 33, "norm_output_1": 2048}, dtype="float16", devices=("cuda",)),
        Workload(axes={"norm_output_0": 33, "norm_output_1": 2048}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"norm_output_0": 512, "norm_output_1": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"norm_output_0": 512, "norm_output_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"norm_output_0": 4096, "norm_output_1": 5120}, dtype="float16", devices=("cuda",), timed=False),
        Workload(axes={"norm_output_0": 4096, "norm_output_1": 5120}, dtype="bfloat16", devices=("cuda",)),
    ),
)
