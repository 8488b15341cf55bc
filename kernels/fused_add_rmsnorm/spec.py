"""The residual addition and the RMS norm that stand before every block of a Llama-like model, as SGLang fuses them."""

from kernels.spec import Scalar, Size, Spec, Tensor, sizes

at = sizes("tokens", "hidden")

SPEC = Spec(
    name="fused_add_rmsnorm",
    summary="residual += input; input = residual / sqrt(mean(residual^2) + eps) * weight, both in place",
    axes=("tokens", "hidden"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="input", role="inout", shape=("tokens", "hidden")),
        Tensor(name="residual", role="inout", shape=("tokens", "hidden")),
        Tensor(name="weight", role="input", shape=("hidden",), values=("ordinary", "zeros"), constant=True),
        Size(name="tokens"),
        Size(name="hidden"),
        Scalar(name="eps", value=1e-6),
    ),
    # Per element: the sum, the square and its sum, the product with 1/rms, the product with the weight.
    flops="5*tokens*hidden",
    library="flashinfer.fused_add_rmsnorm",
    default_baseline={"cuda": "production"},
    workloads=(
        # The four shapes of Astra's table 4.
        at("cuda", "float16", 256, 4096),
        at("cuda", "float16", 1024, 4096),
        at("cuda", "float16", 128, 11008),
        at("cuda", "float16", 512, 14336),
        at("cuda", "bfloat16", 256, 4096),
        at("cuda", "bfloat16", 512, 14336),
        # A prefill of 1.1 GB traffic, some twenty times the L2 of an H200.
        at("cuda", "float16", 16384, 8192),
        at("cuda", "float16", 1, 4096, timed=False),
        at("cuda", "float16", 7, 1001, timed=False),
        at("cuda", "bfloat16", 5, 172, timed=False),
        at("cuda", "float32", 3, 1026, timed=False),
        at("cuda", "float16", 32, 5120, held_out=True),
        at("cuda", "bfloat16", 384, 7168, held_out=True),
        at("cuda", "float16", 64, 16384, held_out=True),
        at("cuda", "bfloat16", 8192, 12288, held_out=True),
        at("cuda", "float32", 256, 2048, held_out=True),
        at("cuda", "float16", 13, 2730, timed=False, held_out=True),
        # 71 MB of traffic, twice the last-level cache of the server parts that this was tried on.
        at("cpu", "float32", 1024, 4352),
        at("cpu", "float32", 64, 4096),
        at("cpu", "bfloat16", 128, 4096),
        at("cpu", "float16", 32, 8192),
        at("cpu", "bfloat16", 1, 173, timed=False),
        at("cpu", "float16", 7, 1001, timed=False),
        at("cpu", "float32", 48, 6144, held_out=True),
        at("cpu", "bfloat16", 100, 2816, held_out=True),
        at("cpu", "float32", 5, 2730, timed=False, held_out=True),
    ),
)
