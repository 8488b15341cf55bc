from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="scaled_embedding_bag_impl",
    summary="torchao::_scaled_embedding_bag_impl of scaled_embedding_bag.cpp",
    axes=("qweight_0", "indices_0", "offsets_0"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="qweight", role="input", shape=("qweight_0", "128"), dtype="int8", values=("integers:-120:120",)),
        Tensor(name="indices", role="input", shape=("indices_0",), dtype="int64", values=("index:qweight_0",)),
        Tensor(name="offsets", role="input", shape=("offsets_0",), dtype="int64", values=("drawn:offsets",)),
        Tensor(name="w_scales", role="input", shape=("1",)),
        Scalar(name="o_scale", ctype="double", value=1.0),
        Scalar(name="mode", ctype="int64_t", value=0),
        Scalar(name="include_last_offset", ctype="int64_t", value=1),
        Tensor(name="out", role="output", shape=("offsets_0 - 1", "128")),
        Size(name="qweight_0"),
        Size(name="indices_0"),
        Size(name="offsets_0"),
    ),
    build={
        "include": ("include",),
        "binding": "torchao::_scaled_embedding_bag_impl(qweight, indices, offsets, w_scales, o_scale, mode, include_last_offset, at::ScalarType::Float)",
    },
    workloads=(
        Workload(axes={"qweight_0": 100, "indices_0": 12, "offsets_0": 5}, dtype="float32", devices=("cpu",)),
        Workload(axes={"qweight_0": 100000, "indices_0": 20480, "offsets_0": 1025}, dtype="float32", devices=("cpu",)),
    ),
)
