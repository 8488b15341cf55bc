from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="xnn_f32_raddstoreexpminusmax_ukernel__avx2_rr2_p5_u32_acc2",
    summary="xnn_f32_raddstoreexpminusmax_ukernel__avx2_rr2_p5_u32_acc2 of f32-raddstoreexpminusmax-avx2-rr2-p5-u32-acc2.c",
    axes=("batch",),
    dtypes=("float32",),
    arguments=(
        Size(name="batch"),
        Tensor(name="input", role="input", shape=("batch//4",)),
        Tensor(name="max", role="input", shape=("1",)),
        Tensor(name="output", role="output", shape=("batch//4",)),
        Tensor(name="sum", role="output", shape=("1",)),
    ),
    build={
        "language": "c",
        "include": ("include",),
        "binding": "xnn_f32_raddstoreexpminusmax_ukernel__avx2_rr2_p5_u32_acc2(batch, input, max, output, sum, nullptr)",
    },
    workloads=(
        Workload(axes={"batch": 524}, dtype="float32", devices=("cpu",)),
        Workload(axes={"batch": 16384}, dtype="float32", devices=("cpu",), held_out=True),
        Workload(axes={"batch": 4194304}, dtype="float32", devices=("cpu",)),
        Workload(axes={"batch": 67108864}, dtype="float32", devices=("cpu",)),
    ),
)
