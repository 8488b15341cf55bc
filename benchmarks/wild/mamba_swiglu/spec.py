from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="swiglu_fwd",
    summary="_swiglu_fwd of k_activations.py",
    entry="_swiglu_fwd",
    axes=("xy_0", "xy_1", "xy_2"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="xy", role="input", shape=("xy_0", "xy_1", "xy_2"), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("xy_0", "xy_1", "xy_2//2")),
        Size(name="xy_0"),
        Size(name="xy_1"),
        Size(name="xy_2"),
    ),
    build={"include": ("include",), "binding": "mamba_ssm.ops.triton.k_activations"},
    workloads=(
        Workload(axes={"xy_0": 1, "xy_1": 7, "xy_2": 2048}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"xy_0": 1, "xy_1": 1, "xy_2": 22016}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"xy_0": 2, "xy_1": 512, "xy_2": 8192}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"xy_0": 4, "xy_1": 2048, "xy_2": 16384}, dtype="bfloat16", devices=("cuda",)),
    ),
)
