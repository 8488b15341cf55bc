from kernels.spec import Scalar, Spec, Tensor, Workload

SPEC = Spec(
    name="rmsnorm",
    summary="FlashInfer's rmsnorm over TVM-FFI",
    axes=("batch", "hidden"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="output", role="output", shape=("batch", "hidden")),
        Tensor(name="input", role="input", shape=("batch", "hidden")),
        Tensor(name="weight", role="input", shape=("hidden",), constant=True),
        Scalar(name="eps", ctype="double", value=1e-6),
        Scalar(name="enable_pdl", ctype="int64_t", value=0),
    ),
    workloads=tuple(
        Workload(axes={"batch": b, "hidden": h}, dtype=t, weight=w)
        for t in ("float16", "bfloat16")
        for b, h, w in ((1, 4096, 100), (4096, 4096, 3))
    ),
    build={
        "include": ("include",),
        "flags": (
            "-std=c++17",
            "-use_fast_math",
            "-DFLASHINFER_ENABLE_F16",
            "-DFLASHINFER_ENABLE_BF16",
            "-DENABLE_BF16",
        ),
    },
)
