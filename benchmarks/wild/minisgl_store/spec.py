from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="storekernel",
    summary="StoreKernel<2048>::run of store.cu",
    axes=("k_cache_0", "indices_0"),
    dtypes=("float16",),
    arguments=(
        Tensor(name="k_cache", role="inout", shape=("k_cache_0", "1024"), strides=("2048", "1")),
        Tensor(name="v_cache", role="inout", shape=("k_cache_0", "1024"), strides=("2048", "1")),
        Tensor(name="indices", role="input", shape=("indices_0",), dtype="int32", values=("permutation:k_cache_0",)),
        Tensor(name="k", role="input", shape=("indices_0", "1024"), strides=("4096", "1")),
        Tensor(name="v", role="input", shape=("indices_0", "1024"), strides=("4096", "1")),
        Size(name="k_cache_0"),
        Size(name="indices_0"),
    ),
    build={"include": ("include", "include/more_0"), "binding": "StoreKernel<2048>::run"},
    workloads=(
        Workload(axes={"k_cache_0": 16384, "indices_0": 1}, dtype="float16", devices=("cuda",)),
        Workload(axes={"k_cache_0": 16384, "indices_0": 64}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"k_cache_0": 16384, "indices_0": 777}, dtype="float16", devices=("cuda",)),
        Workload(axes={"k_cache_0": 16384, "indices_0": 16000}, dtype="float16", devices=("cuda",)),
    ),
)
