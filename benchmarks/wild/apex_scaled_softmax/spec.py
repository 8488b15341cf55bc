from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="fwd_cuda",
    summary="multihead_attn::fused_softmax::scaled_softmax::fwd_cuda of scaled_softmax_cuda.cu",
    axes=("input_0", "input_1", "input_2", "input_3"),
    dtypes=("bfloat16", "float16"),
    arguments=(
        Tensor(name="input", role="input", shape=("input_0", "input_1", "input_2", "input_3")),
        Scalar(name="scale_factor", ctype="float", value=0.125),
        Tensor(name="out", role="output", shape=("input_0", "input_1", "input_2", "input_3")),
        Size(name="input_0"),
        Size(name="input_1"),
        Size(name="input_2"),
        Size(name="input_3"),
    ),
    build={"binding": "multihead_attn::fused_softmax::scaled_softmax::fwd_cuda"},
    workloads=(
        Workload(axes={"input_0": 1, "input_1": 2, "input_2": 16, "input_3": 64}, dtype="bfloat16", devices=("cuda",)),
        Workload(
            axes={"input_0": 1, "input_1": 2, "input_2": 16, "input_3": 64},
            dtype="float16",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(
            axes={"input_0": 3, "input_1": 8, "input_2": 128, "input_3": 512}, dtype="bfloat16", devices=("cuda",)
        ),
        Workload(
            axes={"input_0": 3, "input_1": 8, "input_2": 128, "input_3": 512},
            dtype="float16",
            devices=("cuda",),
            timed=False,
        ),
        Workload(
            axes={"input_0": 4, "input_1": 16, "input_2": 256, "input_3": 256},
            dtype="bfloat16",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(
            axes={"input_0": 4, "input_1": 16, "input_2": 256, "input_3": 256}, dtype="float16", devices=("cuda",)
        ),
        Workload(
            axes={"input_0": 2, "input_1": 32, "input_2": 1024, "input_3": 1024},
            dtype="bfloat16",
            devices=("cuda",),
            timed=False,
        ),
        Workload(
            axes={"input_0": 2, "input_1": 32, "input_2": 1024, "input_3": 1024}, dtype="float16", devices=("cuda",)
        ),
    ),
)
