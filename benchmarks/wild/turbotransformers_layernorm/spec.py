from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="gpulayernorm",
    summary="turbo_transformers::layers::kernels::GPULayerNorm<true,float> of gpu_layer_norm_kernel.cu",
    axes=("m", "n"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="out", role="inout", shape=("m", "n")),
        Tensor(name="input", role="input", shape=("m", "n")),
        Tensor(name="bias", role="input", shape=("n",)),
        Tensor(name="gamma", role="input", shape=("n",)),
        Tensor(name="beta", role="input", shape=("n",)),
        Size(name="m"),
        Size(name="n"),
    ),
    build={
        "include": (
            "include/turbo_transformers/layers/kernels",
            "include",
        ),
        "binding": "turbo_transformers::layers::kernels::GPULayerNorm<true,float>(out, input, bias, gamma, beta, m, n, stream)",
    },
    workloads=(
        Workload(axes={"m": 40, "n": 768}, dtype="float32", devices=("cuda",)),
        Workload(axes={"m": 77, "n": 1000}, dtype="float32", devices=("cuda",), held_out=True),
        Workload(axes={"m": 512, "n": 1024}, dtype="float32", devices=("cuda",)),
        Workload(axes={"m": 4000, "n": 3072}, dtype="float32", devices=("cuda",), timed=False),
        Workload(axes={"m": 16384, "n": 2048}, dtype="float32", devices=("cuda",)),
    ),
)
