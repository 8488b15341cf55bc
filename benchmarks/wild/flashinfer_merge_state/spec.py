from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="merge_state",
    summary="merge_state of cascade.cu",
    axes=("v_a_0", "v_a_1", "v_a_2"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="v_a", role="input", shape=("v_a_0", "v_a_1", "v_a_2")),
        Tensor(name="s_a", role="input", shape=("v_a_0", "v_a_1"), dtype="float32"),
        Tensor(name="v_b", role="input", shape=("v_a_0", "v_a_1", "v_a_2")),
        Tensor(name="s_b", role="input", shape=("v_a_0", "v_a_1"), dtype="float32"),
        Tensor(name="v_merged", role="output", shape=("v_a_0", "v_a_1", "v_a_2")),
        Tensor(name="s_merged", role="output", shape=("v_a_0", "v_a_1"), dtype="float32"),
        Size(name="v_a_0"),
        Size(name="v_a_1"),
        Size(name="v_a_2"),
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
        Workload(axes={"v_a_0": 17, "v_a_1": 32, "v_a_2": 128}, dtype="float16", devices=("cuda",)),
        Workload(axes={"v_a_0": 4096, "v_a_1": 8, "v_a_2": 64}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"v_a_0": 768, "v_a_1": 32, "v_a_2": 128}, dtype="float16", devices=("cuda",)),
        Workload(axes={"v_a_0": 2048, "v_a_1": 32, "v_a_2": 128}, dtype="float16", devices=("cuda",)),
    ),
)
