from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="bias_gelu_tanh",
    summary="sglang::bias_gelu_tanh<{T}, false> of bias_gelu.cuh",
    axes=("input_0", "input_1"),
    dtypes=("bfloat16", "float16"),
    arguments=(
        Tensor(name="input", role="input", shape=("input_0", "input_1")),
        Tensor(name="bias", role="input", shape=("input_1",)),
        Tensor(name="output", role="output", shape=("input_0", "input_1")),
        Size(name="input_0"),
        Size(name="input_1"),
    ),
    build={
        "flags": ("-DSGL_CUDA_ARCH=900", "--expt-relaxed-constexpr", "-std=c++20"),
        "include": ("include",),
        "binding": {
            "bfloat16": "sglang::bias_gelu_tanh<__nv_bfloat16, false>",
            "float16": "sglang::bias_gelu_tanh<half, false>",
        },
    },
    workloads=(
        Workload(axes={"input_0": 1, "input_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 1, "input_1": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 77, "input_1": 1024}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 77, "input_1": 1024}, dtype="float16", devices=("cuda",), timed=False),
        Workload(axes={"input_0": 64, "input_1": 3072}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 64, "input_1": 3072}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_0": 2048, "input_1": 4096}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"input_0": 2048, "input_1": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 4096, "input_1": 5120}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 4096, "input_1": 5120}, dtype="float16", devices=("cuda",)),
    ),
)
