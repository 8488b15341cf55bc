from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="apply_rope_pos_ids",
    summary="apply_rope_pos_ids of rope.cu",
    axes=("q_0", "q_1", "q_stride_0"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="q", role="input", shape=("q_0", "q_1", "128"), strides=("q_stride_0", "128", "1")),
        Tensor(
            name="k", role="input", shape=("q_0", "8", "128"), strides=("q_stride_0", "128", "1"), values=("ordinary",)
        ),
        Tensor(name="q_rope", role="output", shape=("q_0", "q_1", "128")),
        Tensor(name="k_rope", role="output", shape=("q_0", "8", "128")),
        Tensor(name="pos_ids", role="input", shape=("q_0",), dtype="int32", values=("integers:6:4095",)),
        Scalar(name="rotary_dim", ctype="int64_t", value=128),
        Scalar(name="interleave", ctype="int64_t", value=0),
        Scalar(name="rope_scale", ctype="double", value=1.0),
        Scalar(name="rope_theta", ctype="double", value=10000.0),
        Size(name="q_0"),
        Size(name="q_1"),
        Size(name="q_stride_0"),
    ),
    build={
        "flags": (
            "-std=c++17",
            "-use_fast_math",
            "-DENABLE_BF16",
            "-DFLASHINFER_ENABLE_F16",
            "-DFLASHINFER_ENABLE_BF16",
        ),
        "include": ("include/csrc", "include/include"),
    },
    workloads=(
        Workload(axes={"q_0": 19, "q_1": 32, "q_stride_0": 6144}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"q_0": 99, "q_1": 32, "q_stride_0": 6144}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"q_0": 989, "q_1": 8, "q_stride_0": 3072}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"q_0": 2048, "q_1": 32, "q_stride_0": 6144}, dtype="bfloat16", devices=("cuda",)),
    ),
)
