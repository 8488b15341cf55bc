from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="softcap_logits",
    summary="_softcap_logits of softcap.py",
    entry="_softcap_logits",
    axes=("full_logits_0", "full_logits_1"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="full_logits", role="inout", shape=("full_logits_0", "full_logits_1")),
        Scalar(name="final_logit_softcapping", ctype="float", value=30.0),
        Size(name="full_logits_0"),
        Size(name="full_logits_1"),
    ),
    workloads=(
        Workload(axes={"full_logits_0": 3, "full_logits_1": 1000}, dtype="float32", devices=("cuda",)),
        Workload(axes={"full_logits_0": 1, "full_logits_1": 32000}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"full_logits_0": 8, "full_logits_1": 128256}, dtype="float32", devices=("cuda",)),
        Workload(axes={"full_logits_0": 64, "full_logits_1": 128256}, dtype="float32", devices=("cuda",)),
    ),
)
