from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="layernorm",
    summary="layernorm of norm.cu",
    axes=("output_0", "output_1"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="output", role="output", shape=("output_0", "output_1")),
        Tensor(name="input", role="input", shape=("output_0", "output_1")),
        Tensor(name="gamma", role="input", shape=("output_1",), dtype="float32"),
        Tensor(name="beta", role="input", shape=("output_1",), dtype="float32"),
        Scalar(name="eps", ctype="double", value=1e-06),
        Size(name="output_0"),
        Size(name="output_1"),
    ),
    build={
        "flags": (
            "-std=c++17",
            "-use_fast_math",
            "-DFLASHINFER_ENABLE_F16",
            "-DFLASHINFER_ENABLE_BF16",
            "-DENABLE_BF16",
        ),
        "include": ("include",),
    },
    workloads=(
        Workload(axes={"output_0": 1, "output_1": 1024}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"output_0": 99, "output_1": 512}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"output_0": 19, "output_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"output_0": 989, "output_1": 3072}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"output_0": 2048, "output_1": 8192}, dtype="bfloat16", devices=("cuda",)),
    ),
)
