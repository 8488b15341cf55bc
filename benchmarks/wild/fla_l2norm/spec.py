from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="l2norm_fwd",
    summary="l2norm_fwd of l2norm.py",
    axes=("x_0", "x_1", "x_2", "x_3"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0", "x_1", "x_2", "x_3"), values=("ordinary",)),
        Tensor(name="out_0", role="output", shape=("x_0", "x_1", "x_2", "x_3")),
        Tensor(name="out_1", role="output", shape=("x_0", "x_1", "x_2"), dtype="float32"),
        Scalar(name="eps", ctype="float", value=1e-06),
        Size(name="x_0"),
        Size(name="x_1"),
        Size(name="x_2"),
        Size(name="x_3"),
    ),
    build={"include": ("include",), "binding": "fla.modules.l2norm"},
    workloads=(
        Workload(axes={"x_0": 1, "x_1": 63, "x_2": 1, "x_3": 60}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 2, "x_1": 500, "x_2": 4, "x_3": 64}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 2, "x_1": 1000, "x_2": 16, "x_3": 128}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 4, "x_1": 4096, "x_2": 16, "x_3": 128}, dtype="bfloat16", devices=("cuda",)),
    ),
)
