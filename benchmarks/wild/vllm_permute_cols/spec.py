from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="permute_cols",
    summary="permute_cols of permute_cols.cu",
    axes=("a_0", "a_1"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="a", role="input", shape=("a_0", "a_1")),
        Tensor(name="perm", role="input", shape=("a_1",), dtype="int32", values=("permutation:a_1",)),
        Tensor(name="out", role="output", shape=("a_0", "a_1")),
        Size(name="a_0"),
        Size(name="a_1"),
    ),
    build={"include": ("include",)},
    workloads=(
        Workload(axes={"a_0": 1, "a_1": 512}, dtype="bfloat16", devices=("cuda",)),
        Workload(axes={"a_0": 67, "a_1": 8192}, dtype="bfloat16", devices=("cuda",), held_out=True),
        Workload(axes={"a_0": 544, "a_1": 4096}, dtype="bfloat16", devices=("cuda",)),
    ),
)
