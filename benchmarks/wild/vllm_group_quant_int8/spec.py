from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="per_token_group_quant_int8",
    summary="per_token_group_quant_int8 of per_token_group_quant.cu",
    axes=("input_0", "input_1"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("input_0", "input_1"), values=("ordinary",)),
        Tensor(name="output_q", role="output", shape=("input_0", "input_1"), dtype="int8"),
        Tensor(name="output_s", role="output", shape=("input_0", "input_1//128"), dtype="float32"),
        Scalar(name="group_size", ctype="int64_t", value=128),
        Scalar(name="eps", ctype="double", value=1e-10),
        Scalar(name="int8_min", ctype="double", value=-128.0),
        Scalar(name="int8_max", ctype="double", value=127.0),
        Size(name="input_0"),
        Size(name="input_1"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"input_0": 7, "input_1": 512}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 83, "input_1": 4096}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 2048, "input_1": 5120}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"input_0": 16384, "input_1": 7168}, dtype="bfloat16", devices=("cuda",)),
    ),
)
