from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="launch_gated_activation",
    summary="launch_gated_activation of gated_activation_kernels_cuda.cu",
    axes=("rows", "cols"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="output", role="output", shape=("rows", "cols")),
        Tensor(name="input", role="input", shape=("rows", "2*cols")),
        Tensor(name="bias", role="input", shape=("2*cols",)),
        Size(name="rows"),
        Size(name="cols"),
    ),
    build={
        "include": ("include/includes",),
        "binding": {
            "float16": "launch_gated_activation<half>(output, input, bias, rows, cols, static_cast<ActivationType>(4), stream)"
        },
    },
    workloads=(
        Workload(axes={"rows": 1, "cols": 4096}, dtype="float16", devices=("cuda",)),
        Workload(axes={"rows": 9, "cols": 1024}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"rows": 4096, "cols": 4096}, dtype="float16", devices=("cuda",)),
    ),
)
