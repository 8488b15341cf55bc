from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="ggml_vec_swiglu_f32",
    summary="ggml_vec_swiglu_f32 of vec.cpp",
    axes=("x_0",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="y", role="output", shape=("x_0",)),
        Tensor(name="x", role="input", shape=("x_0",), values=("ordinary",)),
        Tensor(name="g", role="input", shape=("x_0",), values=("ordinary",)),
        Size(name="x_0"),
    ),
    build={
        "include": ("include/src/ggml-cpu", "include/src", "include/include"),
        "binding": "ggml_vec_swiglu_f32(x_0, y, x, g)",
    },
    workloads=(
        Workload(axes={"x_0": 7}, dtype="float32", devices=("cpu",)),
        Workload(axes={"x_0": 1000}, dtype="float32", devices=("cpu",), held_out=True),
        Workload(axes={"x_0": 11008}, dtype="float32", devices=("cpu",)),
        Workload(axes={"x_0": 8388608}, dtype="float32", devices=("cpu",)),
    ),
)
