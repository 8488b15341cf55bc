from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm",
    summary="rms_norm of layernorm_kernels.cu",
    axes=("out_0", "out_1", "input_stride_0"),
    dtypes=("bfloat16", "float16"),
    arguments=(
        Tensor(name="out", role="output", shape=("out_0", "out_1")),
        Tensor(
            name="input", role="input", shape=("out_0", "out_1"), strides=("input_stride_0", "1"), values=("ordinary",)
        ),
        Tensor(name="weight", role="input", shape=("out_1",), values=("ordinary",)),
        Scalar(name="epsilon", ctype="double", value=1e-06),
        Size(name="out_0"),
        Size(name="out_1"),
        Size(name="input_stride_0"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"out_0": 7, "out_1": 768, "input_stride_0": 2304}, dtype="bfloat16", devices=("cuda",)),
        Workload(
            axes={"out_0": 7, "out_1": 768, "input_stride_0": 2304}, dtype="float16", devices=("cuda",), held_out=True
        ),
        Workload(axes={"out_0": 83, "out_1": 5120, "input_stride_0": 6144}, dtype="bfloat16", devices=("cuda",)),
        Workload(
            axes={"out_0": 83, "out_1": 5120, "input_stride_0": 6144}, dtype="float16", devices=("cuda",), timed=False
        ),
        Workload(
            axes={"out_0": 512, "out_1": 4096, "input_stride_0": 6144},
            dtype="bfloat16",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(axes={"out_0": 512, "out_1": 4096, "input_stride_0": 6144}, dtype="float16", devices=("cuda",)),
        Workload(
            axes={"out_0": 4096, "out_1": 8192, "input_stride_0": 10240},
            dtype="bfloat16",
            devices=("cuda",),
            timed=False,
        ),
        Workload(axes={"out_0": 4096, "out_1": 8192, "input_stride_0": 10240}, dtype="float16", devices=("cuda",)),
    ),
)
