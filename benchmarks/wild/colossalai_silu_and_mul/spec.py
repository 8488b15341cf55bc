from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="silu_and_mul",
    summary="silu_and_mul of activation_kernel.cu",
    axes=("ins_1", "ins_2"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="ins", role="input", shape=("2", "ins_1", "ins_2")),
        Tensor(name="out", role="output", shape=("ins_1", "ins_2")),
        Size(name="ins_1"),
        Size(name="ins_2"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"ins_1": 7, "ins_2": 1001}, dtype="float16", devices=("cuda",)),
        Workload(axes={"ins_1": 3, "ins_2": 11008}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"ins_1": 64, "ins_2": 11008}, dtype="float16", devices=("cuda",)),
        Workload(axes={"ins_1": 512, "ins_2": 13824}, dtype="float16", devices=("cuda",), timed=False),
        Workload(axes={"ins_1": 4096, "ins_2": 11008}, dtype="float16", devices=("cuda",)),
    ),
)
