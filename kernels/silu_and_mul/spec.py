"""SwiGLU's activation as SGLang calls it between the two projections of an MLP."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "hidden")

SPEC = Spec(
    name="silu_and_mul",
    summary="out = silu(first half of the row) * second half, silu(x) = x / (1 + exp(-x))",
    axes=("tokens", "hidden"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "2*hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden")),
        Size(name="tokens"),
        Size(name="hidden"),
    ),
    # Per output element: negate, exp, add, divide, multiply.
    flops="5*tokens*hidden",
    library="flashinfer.silu_and_mul",
    default_baseline={"cuda": "production"},
    workloads=(
        # The four shapes of Astra's table 4, decode batches of Llama-like MLPs.
        at("cuda", "float16", 16, 4096),
        at("cuda", "float16", 32, 5120),
        at("cuda", "float16", 64, 8192),
        at("cuda", "float16", 16, 12288),
        at("cuda", "bfloat16", 32, 5120),
        at("cuda", "bfloat16", 64, 8192),
        # A prefill of 1.4 GB traffic, some twenty times the L2 of an H200.
        at("cuda", "float16", 16384, 14336),
        at("cuda", "float16", 1, 4096, timed=False),
        at("cuda", "float16", 7, 1001, timed=False),
        at("cuda", "bfloat16", 5, 172, timed=False),
        at("cuda", "float32", 3, 1026, timed=False),
        at("cuda", "float16", 24, 6144, held_out=True),
        at("cuda", "bfloat16", 128, 11008, held_out=True),
        at("cuda", "float16", 2048, 8960, held_out=True),
        at("cuda", "bfloat16", 8192, 13824, held_out=True),
        at("cuda", "float32", 256, 2048, held_out=True),
        at("cuda", "float16", 13, 2730, timed=False, held_out=True),
        # An input past 2^31 bytes and 2^30 elements, where the device has the memory to judge it.
        at("cuda", "float16", 40000, 14336, timed=False, held_out=True),
        # 69 MB of traffic, twice the last-level cache of the server parts that this was tried on.
        at("cpu", "float32", 1024, 5632),
        at("cpu", "float32", 32, 4096),
        at("cpu", "bfloat16", 64, 4096),
        at("cpu", "float16", 32, 5120),
        at("cpu", "bfloat16", 1, 173, timed=False),
        at("cpu", "float16", 7, 1001, timed=False),
        at("cpu", "float32", 48, 6144, held_out=True),
        at("cpu", "bfloat16", 100, 2816, held_out=True),
        at("cpu", "float32", 5, 2730, timed=False, held_out=True),
    ),
)
