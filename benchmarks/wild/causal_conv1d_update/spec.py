from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="causal_conv1d_update",
    summary="causal_conv1d_update of causal_conv1d.cpp",
    axes=("x_0", "x_1", "x_2"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(
            name="x", role="input", shape=("x_0", "x_1", "x_2"), strides=("x_1*x_2", "1", "x_1"), values=("ordinary",)
        ),
        Tensor(
            name="conv_state",
            role="inout",
            shape=("x_0", "x_1", "4"),
            strides=("x_1*4", "1", "x_1"),
            values=("ordinary",),
        ),
        Tensor(name="weight", role="input", shape=("x_1", "4"), dtype="float32"),
        Tensor(name="bias_", role="input", shape=("x_1",), dtype="float32"),
        Tensor(name="out", role="inout", shape=("x_0", "x_1", "x_2"), strides=("x_1*x_2", "1", "x_1")),
        Scalar(name="silu_activation", ctype="int64_t", value=1),
        Size(name="x_0"),
        Size(name="x_1"),
        Size(name="x_2"),
    ),
    build={
        "include": ("include",),
        "sources": ("causal_conv1d_update.cu",),
        "binding": "causal_conv1d_update(x, conv_state, weight, bias_, out, silu_activation, std::nullopt, std::nullopt)",
    },
    workloads=(
        Workload(axes={"x_0": 3, "x_1": 272, "x_2": 5}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 64, "x_1": 2048, "x_2": 1}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 64, "x_1": 4096, "x_2": 4}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 512, "x_1": 4096, "x_2": 1}, dtype="bfloat16", devices=("cuda",)),
    ),
)
