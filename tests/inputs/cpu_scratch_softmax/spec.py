"""A masked softmax in the style of ggml: helper functions over vectors, macros, and one buffer for all rows."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="cpu_scratch_softmax",
    summary="dst = softmax(src * scale + mask) along each row",
    axes=("rows", "n"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="src", role="input", shape=("rows", "n")),
        Tensor(name="mask", role="input", shape=("n",)),
        Tensor(name="dst", role="output", shape=("rows", "n")),
        Size(name="rows"),
        Size(name="n"),
        Scalar(name="scale", value=0.125),
    ),
    flops="6*rows*n",
    workloads=(
        Workload(axes={"rows": 2048, "n": 2048}, dtype="float32", devices=("cpu",), timed=True),
        Workload(axes={"rows": 64, "n": 512}, dtype="float32", devices=("cpu",), timed=True),
        Workload(axes={"rows": 1, "n": 1}, dtype="float32", devices=("cpu",), timed=False),
        Workload(axes={"rows": 5, "n": 77}, dtype="float32", devices=("cpu",), timed=False),
    ),
)
