from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="add_in_place",
    summary="add_in_place of add_in_place.py",
    axes=("input_0", "input_1"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="input", role="inout", shape=("input_0", "input_1"), values=("uniform",)),
        Tensor(name="other", role="input", shape=("input_0", "input_1"), values=("uniform",)),
        Scalar(name="alpha", ctype="float", value=0.3),
        Size(name="input_0"),
        Size(name="input_1"),
    ),
    workloads=(
        Workload(axes={"input_0": 1, "input_1": 101}, dtype="float32", devices=("cuda",)),
        Workload(axes={"input_0": 64, "input_1": 4096}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"input_0": 501, "input_1": 901}, dtype="float32", devices=("cuda",)),
        Workload(axes={"input_0": 4096, "input_1": 4096}, dtype="float32", devices=("cuda",)),
    ),
)
