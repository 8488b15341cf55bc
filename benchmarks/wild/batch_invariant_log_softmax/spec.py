from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="log_softmax",
    summary="log_softmax of batch_invariant_ops.py",
    axes=("input_0", "input_1"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="input", role="input", shape=("input_0", "input_1")),
        Tensor(name="out", role="output", shape=("input_0", "input_1")),
        Scalar(name="dim", ctype="int64_t", value=-1),
        Size(name="input_0"),
        Size(name="input_1"),
    ),
    workloads=(
        Workload(axes={"input_0": 16, "input_1": 1000}, dtype="float32", devices=("cuda",)),
        Workload(axes={"input_0": 16, "input_1": 1000}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 256, "input_1": 4096}, dtype="float32", devices=("cuda",)),
        Workload(axes={"input_0": 256, "input_1": 4096}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"input_0": 2048, "input_1": 32000}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 2048, "input_1": 32000}, dtype="bfloat16", devices=("cuda",)),
    ),
)
