from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="quant_per_block_int8_cuda",
    summary="quant_per_block_int8_cuda of fused.cu",
    axes=("input_1",),
    dtypes=("float16",),
    arguments=(
        Tensor(name="input", role="input", shape=("2", "input_1", "16", "64")),
        Tensor(name="output", role="output", shape=("2", "input_1", "16", "64"), dtype="int8"),
        Tensor(name="scale", role="output", shape=("2", "16", "input_1//128"), dtype="float32"),
        Scalar(name="block_size", ctype="int64_t", value=128),
        Scalar(name="tensor_layout", ctype="int64_t", value=0),
        Size(name="input_1"),
    ),
    build={
        "include": ("include/fused", "include"),
        "binding": "quant_per_block_int8_cuda(input, output, scale, block_size, tensor_layout)",
    },
    workloads=(
        Workload(axes={"input_1": 128}, dtype="float16", devices=("cuda",)),
        Workload(axes={"input_1": 1024}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"input_1": 4096}, dtype="float16", devices=("cuda",)),
    ),
)
