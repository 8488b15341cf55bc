from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="indexkernel",
    summary="IndexKernel<8192, 4>::run of index.cu",
    axes=("indices_0",),
    dtypes=("float16",),
    arguments=(
        Tensor(name="weights", role="input", shape=("131072", "4096")),
        Tensor(name="indices", role="input", shape=("indices_0",), dtype="int32", values=("integers:0:131072",)),
        Tensor(name="output", role="output", shape=("indices_0", "4096")),
        Size(name="indices_0"),
    ),
    build={
        "flags": ("--expt-relaxed-constexpr",),
        "include": ("include", "include/more_0"),
        "binding": "IndexKernel<8192, 4>::run(weights, indices, output, std::nullopt)",
    },
    workloads=(
        Workload(axes={"indices_0": 1}, dtype="float16", devices=("cuda",)),
        Workload(axes={"indices_0": 64}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"indices_0": 777}, dtype="float16", devices=("cuda",)),
        Workload(axes={"indices_0": 8192}, dtype="float16", devices=("cuda",)),
    ),
)
