from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="invokegeneralt5layernorm",
    summary="fastertransformer::invokeGeneralT5LayerNorm of layernorm_kernels.cu",
    axes=("m", "n"),
    dtypes=("float32", "float16"),
    arguments=(
        Tensor(name="out", role="output", shape=("m", "n")),
        Tensor(name="input", role="input", shape=("m", "n")),
        Tensor(name="gamma", role="input", shape=("n",)),
        Scalar(name="layernorm_eps", ctype="float", value=1e-06),
        Size(name="m"),
        Size(name="n"),
    ),
    build={
        "include": ("include/more_0/src/fastertransformer/kernels", "include/more_0"),
        "binding": {
            "float32": "fastertransformer::invokeGeneralT5LayerNorm<float>(out, input, gamma, nullptr, layernorm_eps, m, n, stream)",
            "float16": "fastertransformer::invokeGeneralT5LayerNorm<half>(out, input, gamma, nullptr, layernorm_eps, m, n, stream)",
        },
    },
    workloads=(
        Workload(axes={"m": 1, "n": 1024}, dtype="float32", devices=("cuda",)),
        Workload(axes={"m": 1, "n": 1024}, dtype="float16", devices=("cuda",), held_out=True),
        Workload(axes={"m": 33, "n": 512}, dtype="float32", devices=("cuda",)),
        Workload(axes={"m": 33, "n": 512}, dtype="float16", devices=("cuda",), timed=False),
        Workload(axes={"m": 2048, "n": 4096}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"m": 2048, "n": 4096}, dtype="float16", devices=("cuda",)),
    ),
)
