"""One step of the gated delta rule, as decoding in Qwen3-Next and models after it runs it in place of attention."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("batch", "q_heads", "v_heads", "slots", dtype="bfloat16")

SPEC = Spec(
    name="gated_delta_rule_step",
    summary="S = state[slot[b]][h] * exp(-exp(a_log[h]) softplus(a + dt_bias)); S += k (sigmoid(beta) (v - k S)); out = q S / sqrt(128), with k and q of length 1",
    axes=("batch", "q_heads", "v_heads", "slots"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="q", role="input", shape=("batch", "q_heads", "128")),
        Tensor(name="k", role="input", shape=("batch", "q_heads", "128")),
        Tensor(name="v", role="input", shape=("batch", "v_heads", "128")),
        Tensor(name="a", role="input", shape=("batch", "v_heads")),
        Tensor(name="beta", role="input", shape=("batch", "v_heads")),
        Tensor(name="a_log", role="input", shape=("v_heads",), dtype="float32", values=("range:-2:1",), constant=True),
        Tensor(
            name="dt_bias", role="input", shape=("v_heads",), dtype="float32", values=("range:-1:1",), constant=True
        ),
        Tensor(name="slot", role="input", shape=("batch",), dtype="int32", values=("permutation:slots",)),
        Tensor(
            name="state",
            role="inout",
            shape=("slots", "v_heads", "128", "128"),
            dtype="float32",
            touched="batch*v_heads*16384",
        ),
        Tensor(name="out", role="output", shape=("batch", "v_heads", "128")),
        Size(name="batch"),
        Size(name="q_heads"),
        Size(name="v_heads"),
        Size(name="slots"),
    ),
    flops="7*batch*v_heads*16384",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Heads and calls of the public profile that README names; 64 sequences leave the cache.
        at("cuda", 1, 16, 32, 2, weight=6180),
        at("cuda", 1, 4, 8, 2, weight=1728),
        at("cuda", 64, 16, 32, 64, weight=42),
        at("cuda", 2, 1, 2, 3, timed=False),
        at("cuda", 3, 3, 3, 3, timed=False),
        at("cuda", 1, 8, 16, 2, weight=1395, held_out=True),
        at("cuda", 32, 16, 32, 40, weight=42, held_out=True),
        at("cuda", 1, 2, 2, 4, timed=False, held_out=True),
        at("cpu", 20, 16, 32, 20, weight=1),
        at("cpu", 1, 16, 32, 2, weight=1),
        at("cpu", 2, 1, 2, 3, timed=False),
        at("cpu", 3, 3, 3, 3, timed=False),
        at("cpu", 2, 4, 8, 3, weight=1, held_out=True),
        at("cpu", 1, 2, 2, 4, timed=False, held_out=True),
    ),
)
