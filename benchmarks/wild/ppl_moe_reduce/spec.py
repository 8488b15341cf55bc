from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="moe_reduce_sum_kernel",
    summary="ppl::kernel::llm::cuda::pmx::moe_reduce_sum_kernel of moe_reduce.cu",
    axes=("cols", "expert_weights_0", "num_experts_per_token"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="y_expand_permute", role="input", shape=("expert_weights_0*num_experts_per_token", "cols")),
        Tensor(
            name="expert_weights",
            role="input",
            shape=("expert_weights_0", "num_experts_per_token"),
            values=("uniform",),
        ),
        Tensor(
            name="invert_permutation",
            role="input",
            shape=("expert_weights_0", "num_experts_per_token"),
            dtype="int64",
            values=("drawn:slots",),
        ),
        Size(name="cols"),
        Size(name="num_experts_per_token"),
        Tensor(name="y_reduced", role="output", shape=("expert_weights_0", "cols")),
        Size(name="expert_weights_0"),
    ),
    build={
        "include": (
            "include",
            "include/more_0",
        ),
        "binding": "ppl::kernel::llm::cuda::pmx::moe_reduce_sum_kernel<<<expert_weights_0, cols < 512 ? cols : 512, 0, stream>>>(y_expand_permute, expert_weights, invert_permutation, cols, num_experts_per_token, y_reduced)",
    },
    workloads=(
        Workload(
            axes={"cols": 4096, "expert_weights_0": 1, "num_experts_per_token": 2}, dtype="float16", devices=("cuda",)
        ),
        Workload(
            axes={"cols": 4096, "expert_weights_0": 64, "num_experts_per_token": 2},
            dtype="float16",
            devices=("cuda",),
            held_out=True,
        ),
        Workload(
            axes={"cols": 1000, "expert_weights_0": 333, "num_experts_per_token": 4}, dtype="float16", devices=("cuda",)
        ),
        Workload(
            axes={"cols": 4096, "expert_weights_0": 2048, "num_experts_per_token": 2},
            dtype="float16",
            devices=("cuda",),
            timed=False,
        ),
        Workload(
            axes={"cols": 2048, "expert_weights_0": 4096, "num_experts_per_token": 8},
            dtype="float16",
            devices=("cuda",),
        ),
    ),
)
