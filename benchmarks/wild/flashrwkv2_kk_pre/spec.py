from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="pretrain_tmix_kk_pre_cuda",
    summary="pretrain_tmix_kk_pre_cuda of pretrain_bf16_forward.cu",
    axes=("head_size",),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="k", role="input", shape=("2", "3", "2*head_size"), values=("normal:0.00571713:0.0993422",)),
        Tensor(name="k_k", role="input", shape=("2*head_size",), values=("normal:-0.0125898:0.109997",)),
        Tensor(name="a", role="input", shape=("2", "3", "2*head_size"), values=("normal:0:0.0966063",)),
        Tensor(name="k_a", role="input", shape=("2*head_size",), values=("normal:0.010756:0.0952312",)),
        Size(name="head_size"),
        Tensor(name="out", role="output", shape=("2", "3", "2*head_size")),
        Tensor(name="out_1", role="output", shape=("2", "3", "2*head_size")),
        Tensor(name="out_2", role="output", shape=("2", "3", "2*head_size")),
    ),
    workloads=(
        Workload(axes={"head_size": 64}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"head_size": 128}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"head_size": 256}, dtype="bfloat16", devices=("cuda",)),
    ),
)
