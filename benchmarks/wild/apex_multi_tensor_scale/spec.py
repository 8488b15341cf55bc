from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="multi_tensor_scale_cuda",
    summary="multi_tensor_scale_cuda of multi_tensor_scale_kernel.cu",
    axes=("tensor_lists_0_0_0",),
    dtypes=("float32",),
    arguments=(
        Scalar(name="chunk_size", ctype="int64_t", value=65536),
        Tensor(name="noop_flag", role="input", shape=("1",), dtype="int32", values=("integers:0:1",)),
        Tensor(name="tensor_lists_0_0", role="input", shape=("tensor_lists_0_0_0",), in_list="tensor_lists/0"),
        Tensor(name="tensor_lists_0_1", role="input", shape=("3*tensor_lists_0_0_0",), in_list="tensor_lists/0"),
        Tensor(name="tensor_lists_0_2", role="input", shape=("7",), in_list="tensor_lists/0"),
        Tensor(name="tensor_lists_1_0", role="inout", shape=("tensor_lists_0_0_0",), in_list="tensor_lists/1"),
        Tensor(name="tensor_lists_1_1", role="inout", shape=("3*tensor_lists_0_0_0",), in_list="tensor_lists/1"),
        Tensor(name="tensor_lists_1_2", role="inout", shape=("7",), in_list="tensor_lists/1"),
        Scalar(name="scale", ctype="float", value=0.25),
        Size(name="tensor_lists_0_0_0"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"tensor_lists_0_0_0": 1000}, dtype="float32", devices=("cuda",)),
        Workload(axes={"tensor_lists_0_0_0": 65537}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"tensor_lists_0_0_0": 1048576}, dtype="float32", devices=("cuda",)),
    ),
)
