from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rotary_embedding",
    summary="rotary_embedding of pos_encoding_kernels.cu",
    axes=("positions_0", "query_1", "key_1"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="positions", role="input", shape=("positions_0",), dtype="int64", values=("integers:1:8191",)),
        Tensor(
            name="query", role="inout", shape=("positions_0", "query_1"), strides=("6144", "1"), values=("ordinary",)
        ),
        Tensor(name="key", role="inout", shape=("positions_0", "key_1"), strides=("6144", "1"), values=("ordinary",)),
        Scalar(name="head_size", ctype="int64_t", value=128),
        Tensor(name="cos_sin_cache", role="input", shape=("8192", "128")),
        Scalar(name="is_neox", ctype="int64_t", value=1),
        Size(name="positions_0"),
        Size(name="query_1"),
        Size(name="key_1"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"positions_0": 11, "query_1": 4096, "key_1": 1024}, dtype="bfloat16", devices=("cuda",)),
        Workload(
            axes={"positions_0": 77, "query_1": 2048, "key_1": 2048}, dtype="bfloat16", devices=("cuda",), held_out=True
        ),
        Workload(axes={"positions_0": 512, "query_1": 4096, "key_1": 1024}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"positions_0": 8192, "query_1": 4096, "key_1": 1024}, dtype="bfloat16", devices=("cuda",)),
    ),
)
