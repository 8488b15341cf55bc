from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="launch_silu_elewise_product",
    summary="lightseq::cuda::launch_silu_elewise_product of llama_kernels.cu",
    axes=("batch_size", "seq_len", "inner_size"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="inp_ptr", role="input", shape=("batch_size", "seq_len", "2*inner_size"), values=("ordinary",)),
        Tensor(name="out_ptr", role="output", shape=("batch_size", "seq_len", "inner_size")),
        Size(name="batch_size"),
        Size(name="seq_len"),
        Size(name="inner_size"),
    ),
    build={
        "include": (
            "include",
            "include/includes",
        ),
        "binding": {
            "float16": "lightseq::cuda::launch_silu_elewise_product<half>(inp_ptr, out_ptr, batch_size, seq_len, inner_size, stream)"
        },
    },
    workloads=(
        Workload(axes={"batch_size": 1, "seq_len": 1, "inner_size": 11008}, dtype="float16", devices=("cuda",)),
        Workload(
            axes={"batch_size": 3, "seq_len": 7, "inner_size": 1001}, dtype="float16", devices=("cuda",), held_out=True
        ),
        Workload(axes={"batch_size": 8, "seq_len": 128, "inner_size": 11008}, dtype="float16", devices=("cuda",)),
        Workload(axes={"batch_size": 4, "seq_len": 512, "inner_size": 13824}, dtype="float16", devices=("cuda",)),
    ),
)
