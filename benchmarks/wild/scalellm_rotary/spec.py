from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="apply_rotary_pos_emb",
    summary="llm::kernel::apply_rotary_pos_emb of pos_embedding_kernels.cu",
    axes=("querys_0", "cos_sin_0"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="querys", role="inout", shape=("querys_0", "32", "128")),
        Tensor(name="keys", role="inout", shape=("querys_0", "8", "128")),
        Tensor(name="positions", role="input", shape=("querys_0",), dtype="int32", values=("index:cos_sin_0",)),
        Tensor(name="cos_sin", role="input", shape=("cos_sin_0", "2", "64")),
        Scalar(name="rotary_dim", ctype="int64_t", value=128),
        Scalar(name="interleaved", ctype="int64_t", value=0),
        Size(name="querys_0"),
        Size(name="cos_sin_0"),
    ),
    build={"include": ("include",), "binding": "llm::kernel::apply_rotary_pos_emb"},
    workloads=(
        Workload(axes={"querys_0": 1, "cos_sin_0": 8192}, dtype="float32", devices=("cuda",)),
        Workload(axes={"querys_0": 33, "cos_sin_0": 8192}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"querys_0": 512, "cos_sin_0": 8192}, dtype="float32", devices=("cuda",)),
        Workload(axes={"querys_0": 4096, "cos_sin_0": 8192}, dtype="float32", devices=("cuda",)),
    ),
)
