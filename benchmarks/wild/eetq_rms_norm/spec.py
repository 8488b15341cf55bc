from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="layernorm_forward_cuda",
    summary="layernorm_forward_cuda of layernorm.cu",
    axes=("input_1", "input_2"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="input", role="input", shape=("1", "input_1", "input_2")),
        Tensor(name="gamma", role="input", shape=("input_2",)),
        Tensor(name="out", role="output", shape=("1", "input_1", "input_2")),
        Scalar(name="eps", ctype="float", value=1e-06),
        Size(name="input_1"),
        Size(name="input_2"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"input_1": 1, "input_2": 4096}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_1": 64, "input_2": 4096}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_1": 4096, "input_2": 5120}, dtype="float16", devices=("cuda",)),
    ),
)
