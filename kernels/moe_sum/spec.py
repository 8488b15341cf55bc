"""The sum of a token's experts: the end of each mixture-of-experts layer."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("tokens", "topk", "hidden", dtype="bfloat16")

SPEC = Spec(
    name="moe_sum",
    summary="out[t] = sum over k of input[t][k]",
    axes=("tokens", "topk", "hidden"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "topk", "hidden")),
        Tensor(name="out", role="output", shape=("tokens", "hidden")),
        Size(name="tokens"),
        Size(name="topk"),
        Size(name="hidden"),
    ),
    flops="tokens*topk*hidden",
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names, and a step of decoding (not counted there).
        at("cuda", 11027, 8, 2048, weight=40),
        at("cuda", 5983, 8, 2048, weight=40),
        at("cuda", 4195, 8, 2048, weight=40),
        at("cuda", 32, 8, 7168, weight=40),
        at("cuda", 3, 2, 1001, timed=False),
        at("cuda", 5, 6, 264, timed=False),
        at("cuda", 6030, 8, 2048, weight=40, held_out=True),
        at("cuda", 4996, 8, 2048, weight=40, held_out=True),
        at("cuda", 7, 3, 514, timed=False, held_out=True),
        at("cpu", 1800, 8, 2048, weight=1),
        at("cpu", 32, 8, 2048, weight=1),
        at("cpu", 3, 2, 1001, timed=False),
        at("cpu", 5, 6, 264, timed=False),
        at("cpu", 96, 8, 2048, weight=1, held_out=True),
        at("cpu", 7, 3, 514, timed=False, held_out=True),
    ),
)
