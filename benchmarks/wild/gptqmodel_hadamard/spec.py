from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="fast_hadamard_transform",
    summary="fast_hadamard_transform of hadamard.cpp",
    axes=("x_0",),
    dtypes=("float16",),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0", "1024")),
        Scalar(name="scale", ctype="double", value=0.5),
        Tensor(name="out", role="output", shape=("x_0", "1024")),
        Size(name="x_0"),
    ),
    build={"include": ("include",), "sources": ("fast_hadamard_transform_cuda.cu",)},
    workloads=(
        Workload(axes={"x_0": 1}, dtype="float16", devices=("cuda",)),
        Workload(axes={"x_0": 17}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 512}, dtype="float16", devices=("cuda",)),
        Workload(axes={"x_0": 8192}, dtype="float16", devices=("cuda",)),
    ),
)
