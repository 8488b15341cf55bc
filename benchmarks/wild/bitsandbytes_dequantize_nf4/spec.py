from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="kdequantizeblockwise",
    summary="kDequantizeBlockwise<half, 512, 64, 8, NF4> of kernels.cu",
    axes=("a_0",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="code", role="input", shape=("16",), values=("drawn:nf4",), constant=True),
        Tensor(name="a", role="input", shape=("a_0",), dtype="uint8", values=("bits",)),
        Tensor(name="absmax", role="input", shape=("a_0//32",), values=("uniform",)),
        Tensor(name="out", role="output", shape=("2*a_0",), dtype="float16"),
        Scalar(name="blocksize", ctype="int64_t", value=64),
        Size(name="a_0"),
    ),
    build={
        "include": ("csrc",),
        "binding": "kDequantizeBlockwise<half, 512, 64, 8, NF4><<<(2 * a_0 + 1023) / 1024, 64, 0, stream>>>((float*)code, (unsigned char*)a, (float*)absmax, out, blocksize / 2, 2 * a_0)",
    },
    workloads=(
        Workload(axes={"a_0": 512}, dtype="float32", devices=("cuda",)),
        Workload(axes={"a_0": 32768}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"a_0": 524288}, dtype="float32", devices=("cuda",)),
        Workload(axes={"a_0": 8388608}, dtype="float32", devices=("cuda",)),
    ),
)
