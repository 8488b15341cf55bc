from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="bnb_quantize",
    summary="bitsandbytes' blockwise 8-bit quantisation on a CPU, blocks of 256",
    axes=("blocks", "n"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="code", role="input", shape=("256",), values=("drawn:code",), constant=True),
        Tensor(name="a", role="input", shape=("256*blocks",)),
        Tensor(name="absmax", role="output", shape=("blocks",)),
        Tensor(name="out", role="output", shape=("256*blocks",), dtype="uint8", ulps=1),
        Size(name="n"),
    ),
    workloads=tuple(
        Workload(axes={"blocks": b, "n": 256 * b}, dtype="float32", devices=("cpu",)) for b in (4, 64, 4096)
    ),
    build={"include": ("csrc",)},
)
