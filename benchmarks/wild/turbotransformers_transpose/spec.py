from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="gpusplitaddbiastransposeforscore",
    summary="turbo_transformers::layers::kernels::GPUSplitAddBiasTransposeForScore of gpu_transpose_kernel.cu",
    axes=("batch_size", "seq_len", "num_attention_heads", "size_per_head"),
    dtypes=("float32",),
    arguments=(
        Tensor(
            name="input_data",
            role="input",
            shape=("batch_size", "seq_len", "3", "num_attention_heads", "size_per_head"),
        ),
        Tensor(name="bias_data", role="input", shape=("3", "num_attention_heads", "size_per_head")),
        Tensor(
            name="out_data", role="output", shape=("3", "batch_size", "num_attention_heads", "seq_len", "size_per_head")
        ),
        Size(name="batch_size"),
        Size(name="seq_len"),
        Scalar(name="weight_num", ctype="int64_t", value=3),
        Size(name="num_attention_heads"),
        Size(name="size_per_head"),
    ),
    build={
        "include": (
            "include/turbo_transformers/layers/kernels",
            "include",
        ),
        "binding": "turbo_transformers::layers::kernels::GPUSplitAddBiasTransposeForScore(input_data, bias_data, out_data, batch_size, seq_len, weight_num, num_attention_heads, size_per_head, stream)",
    },
    workloads=(
        Workload(
            axes={"batch_size": 1, "seq_len": 40, "num_attention_heads": 12, "size_per_head": 64},
            dtype="float32",
            devices=("cuda",),
        ),
        Workload(
            axes={"batch_size": 3, "seq_len": 77, "num_attention_heads": 5, "size_per_head": 80},
            dtype="float32",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(
            axes={"batch_size": 4, "seq_len": 128, "num_attention_heads": 12, "size_per_head": 64},
            dtype="float32",
            devices=("cuda",),
        ),
        Workload(
            axes={"batch_size": 8, "seq_len": 500, "num_attention_heads": 16, "size_per_head": 64},
            dtype="float32",
            devices=("cuda",),
            timed=False,
        ),
        Workload(
            axes={"batch_size": 16, "seq_len": 512, "num_attention_heads": 16, "size_per_head": 128},
            dtype="float32",
            devices=("cuda",),
        ),
    ),
)
