from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm_forward",
    summary="_rms_norm_forward of rmsnorm_kernels.py",
    entry="_rms_norm_forward",
    axes=("x_0", "x_1", "x_2"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0", "x_1", "x_2"), values=("ordinary",)),
        Tensor(name="attn_norm_weights", role="input", shape=("x_2",), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("x_0", "x_1", "x_2")),
        Scalar(name="eps", ctype="float", value=1e-06),
        Size(name="x_0"),
        Size(name="x_1"),
        Size(name="x_2"),
    ),
    build={"include": ("include",), "binding": "xformers.ops._triton.rmsnorm_kernels"},
    workloads=(
        Workload(axes={"x_0": 1, "x_1": 7, "x_2": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 31, "x_1": 27, "x_2": 273}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 4, "x_1": 64, "x_2": 5120}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 8, "x_1": 1024, "x_2": 4096}, dtype="bfloat16", devices=("cuda",)),
    ),
)
