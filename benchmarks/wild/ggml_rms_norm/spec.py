from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm_f32_cuda",
    summary="rms_norm_f32_cuda of norm.cu",
    axes=("x_0", "x_1"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0", "x_1")),
        Tensor(name="dst", role="output", shape=("x_0", "x_1")),
        Scalar(name="eps", ctype="float", value=1e-05),
        Size(name="x_0"),
        Size(name="x_1"),
    ),
    build={
        "include": ("ggml-cuda", "include", "own"),
        "sources": ("device.cu",),
        "binding": "rms_norm_f32_cuda(x, dst, x_1, x_0, 1, 1, x_1, x_0 * x_1, x_0 * x_1, eps, stream)",
    },
    workloads=(
        Workload(axes={"x_0": 1, "x_1": 2048}, dtype="float32", devices=("cuda",)),
        Workload(axes={"x_0": 3, "x_1": 4096}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 64, "x_1": 4096}, dtype="float32", devices=("cuda",)),
        Workload(axes={"x_0": 512, "x_1": 8192}, dtype="float32", devices=("cuda",), timed=False),
        Workload(axes={"x_0": 2048, "x_1": 4096}, dtype="float32", devices=("cuda",)),
    ),
)
