from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="dequantize_row_q8_0",
    summary="dequantize_row_q8_0 of ggml-quants.c",
    axes=("k",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("k//32", "34"), dtype="uint8", values=("bits",)),
        Tensor(name="y", role="output", shape=("k",)),
        Size(name="k"),
    ),
    build={"language": "c", "include": ("include/src", "include/include"), "binding": "dequantize_row_q8_0(x, y, k)"},
    workloads=(
        Workload(axes={"k": 96}, dtype="float32", devices=("cpu",)),
        Workload(axes={"k": 4096}, dtype="float32", devices=("cpu",), held_out=True),
        Workload(axes={"k": 16777216}, dtype="float32", devices=("cpu",)),
        Workload(axes={"k": 45088768}, dtype="float32", devices=("cpu",)),
    ),
)
