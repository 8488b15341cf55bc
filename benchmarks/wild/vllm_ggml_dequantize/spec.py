from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="ggml_dequantize",
    summary="ggml_dequantize of gguf_kernel.cu",
    axes=("m", "w_1", "n"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="w", role="input", shape=("m", "w_1"), dtype="uint8", values=("drawn:blocks",)),
        Scalar(name="type", ctype="int64_t", value=8),
        Size(name="m"),
        Size(name="n"),
        Tensor(name="out", role="output", shape=("m", "n")),
        Size(name="w_1"),
    ),
    build={
        "include": ("include/quantization/gguf", "include"),
        "binding": "ggml_dequantize(w, type, m, n, at::ScalarType::Half)",
    },
    workloads=(
        Workload(axes={"m": 4, "w_1": 272, "n": 256}, dtype="float16", devices=("cuda",)),
        Workload(axes={"m": 100, "w_1": 1088, "n": 1024}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"m": 4096, "w_1": 4352, "n": 4096}, dtype="float16", devices=("cuda",)),
    ),
)
