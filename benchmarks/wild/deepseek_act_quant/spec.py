from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="act_quant",
    summary="act_quant of kernel.py",
    axes=("x_0", "x_1"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="x", role="input", shape=("x_0", "x_1")),
        Tensor(name="y", role="output", shape=("x_0", "x_1"), dtype="float8_e4m3fn"),
        Tensor(name="s", role="output", shape=("x_0", "x_1//128"), dtype="float32"),
        Size(name="x_0"),
        Size(name="x_1"),
    ),
    workloads=(
        Workload(axes={"x_0": 1, "x_1": 7168}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 64, "x_1": 7168}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"x_0": 333, "x_1": 2048}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"x_0": 4096, "x_1": 7168}, dtype="bfloat16", devices=("cuda",)),
    ),
)
