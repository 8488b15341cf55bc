from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="triton_rotary_embd_forward",
    summary="triton_rotary_embd_forward of rotary_embedding.py",
    axes=("max_seq_len", "q_1"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="q", role="input", shape=("max_seq_len", "q_1", "32", "128")),
        Tensor(name="k", role="input", shape=("max_seq_len", "q_1", "8", "128")),
        Tensor(name="cos_ptr", role="input", shape=("max_seq_len", "1", "1", "128")),
        Tensor(name="sin_ptr", role="input", shape=("max_seq_len", "1", "1", "128")),
        Tensor(name="q_embed", role="output", shape=("max_seq_len", "q_1", "32", "128")),
        Tensor(name="k_embed", role="output", shape=("max_seq_len", "q_1", "8", "128")),
        Scalar(name="offset", ctype="int64_t", value=0),
        Size(name="max_seq_len"),
        Scalar(name="seq_dim", ctype="int64_t", value=0),
        Size(name="q_1"),
    ),
    build={"include": ("include",), "binding": "flashnn.triton_kernels.rotary_embedding"},
    workloads=(
        Workload(axes={"max_seq_len": 1, "q_1": 1}, dtype="float16", devices=("cuda",)),
        Workload(axes={"max_seq_len": 17, "q_1": 3}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"max_seq_len": 512, "q_1": 2}, dtype="float16", devices=("cuda",)),
        Workload(axes={"max_seq_len": 2048, "q_1": 4}, dtype="float16", devices=("cuda",)),
    ),
)
