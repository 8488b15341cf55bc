from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="relu_squared_forward",
    summary="relu_squared_forward of relu_squared.py",
    axes=("x_0", "x_1", "x_2"),
    dtypes=("float32", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0", "x_1", "x_2"), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("x_0", "x_1", "x_2")),
        Size(name="x_0"),
        Size(name="x_1"),
        Size(name="x_2"),
    ),
    build={"include": ("include",), "binding": "liger_kernel.ops.relu_squared"},
    workloads=(
        Workload(axes={"x_0": 2, "x_1": 8, "x_2": 512}, dtype="float32", devices=("cuda",)),
        Workload(axes={"x_0": 2, "x_1": 8, "x_2": 512}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 3, "x_1": 7, "x_2": 1000}, dtype="float32", devices=("cuda",)),
        Workload(axes={"x_0": 3, "x_1": 7, "x_2": 1000}, dtype="bfloat16", devices=("cuda",), timed=False),
        Workload(axes={"x_0": 8, "x_1": 1024, "x_2": 4096}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 8, "x_1": 1024, "x_2": 4096}, dtype="bfloat16", devices=("cuda",)),
    ),
)
