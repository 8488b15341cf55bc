from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="sub_mean_cuda",
    summary="sub_mean_cuda of fused.cu",
    axes=("input_1",),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("2", "input_1", "16", "64")),
        Tensor(name="mean", role="input", shape=("2", "16", "64"), values=("normal:0:0.0890256",)),
        Tensor(name="output", role="output", shape=("2", "input_1", "16", "64"), dtype="float16"),
        Scalar(name="tensor_layout", ctype="int64_t", value=0),
        Size(name="input_1"),
    ),
    build={"include": ("include/fused", "include")},
    workloads=(
        Workload(axes={"input_1": 128}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_1": 1000}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"input_1": 4096}, dtype="bfloat16", devices=("cuda",)),
    ),
)
