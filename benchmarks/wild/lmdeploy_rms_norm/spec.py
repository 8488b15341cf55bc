from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="rms_norm",
    summary="rms_norm of rms_norm.py",
    axes=("hidden_states_0", "hidden_states_1"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="hidden_states", role="input", shape=("hidden_states_0", "hidden_states_1"), values=("ordinary",)),
        Tensor(name="weight", role="input", shape=("hidden_states_1",), values=("ordinary",)),
        Tensor(name="out", role="output", shape=("hidden_states_0", "hidden_states_1")),
        Scalar(name="eps", ctype="float", value=1e-06),
        Size(name="hidden_states_0"),
        Size(name="hidden_states_1"),
    ),
    build={"include": ("include",), "binding": "lmdeploy.pytorch.kernels.cuda.rms_norm"},
    workloads=(
        Workload(axes={"hidden_states_0": 1, "hidden_states_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(
            axes={"hidden_states_0": 77, "hidden_states_1": 1024}, dtype="bfloat16", devices=("cuda",), held_out=True
        ),
        Workload(axes={"hidden_states_0": 64, "hidden_states_1": 4096}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"hidden_states_0": 4096, "hidden_states_1": 8192}, dtype="bfloat16", devices=("cuda",)),
    ),
)
