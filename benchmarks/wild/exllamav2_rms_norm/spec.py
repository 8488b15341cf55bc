from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm_cuda",
    summary="rms_norm_cuda of rms_norm.cu",
    axes=("rows", "dim"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "dim")),
        Tensor(name="w", role="input", shape=("dim",)),
        Tensor(name="y", role="output", shape=("rows", "dim")),
        Scalar(name="epsilon", ctype="float", value=1e-06),
        Size(name="rows"),
        Size(name="dim"),
        Scalar(name="add_residual", ctype="int64_t", value=0),
        Scalar(name="input_fp32", ctype="int64_t", value=0),
        Scalar(name="output_fp32", ctype="int64_t", value=0),
        Scalar(name="label", ctype="int64_t", value=0),
    ),
    build={
        "include": ("include",),
        "binding": "rms_norm_cuda(x, w, y, epsilon, rows, dim, add_residual, input_fp32, output_fp32, (Graph*)nullptr, label, stream)",
    },
    workloads=(
        Workload(axes={"rows": 1, "dim": 4096}, dtype="float16", devices=("cuda",)),
        Workload(axes={"rows": 17, "dim": 2048}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"rows": 4096, "dim": 4096}, dtype="float16", devices=("cuda",)),
    ),
)
