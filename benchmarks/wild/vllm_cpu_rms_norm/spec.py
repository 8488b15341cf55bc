from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm",
    summary="rms_norm of layernorm.cpp",
    axes=("out_0", "out_1"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="out", role="output", shape=("out_0", "out_1")),
        Tensor(name="input", role="input", shape=("out_0", "out_1"), values=("ordinary",)),
        Tensor(name="weight", role="input", shape=("out_1",), values=("ordinary",)),
        Scalar(name="epsilon", ctype="double", value=1e-06),
        Size(name="out_0"),
        Size(name="out_1"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"out_0": 1, "out_1": 4096}, dtype="float32", devices=("cpu",)),
        Workload(axes={"out_0": 1, "out_1": 4096}, dtype="bfloat16", devices=("cpu",), held_out=True),
        Workload(axes={"out_0": 7, "out_1": 1024}, dtype="float32", devices=("cpu",)),
        Workload(axes={"out_0": 7, "out_1": 1024}, dtype="bfloat16", devices=("cpu",), timed=False),
        Workload(axes={"out_0": 1024, "out_1": 4096}, dtype="float32", devices=("cpu",), held_out=True),
        Workload(axes={"out_0": 1024, "out_1": 4096}, dtype="bfloat16", devices=("cpu",)),
    ),
)
