"""Two partial attention results over disjoint keys become one, as SGLang's chunked prefill and cascade attention do."""

from kernels.spec import Size, Spec, Tensor, sizes

# Log-sum-exps of real scores lie within some tens; `large` reaches +-120, where the exp of an unshifted lse overflows,
# and `infinities` mixes in the +inf and -inf that attention kernels write for rows without a key.
LSE = ("range:-10:10", "large", "zeros", "infinities")


at = sizes("tokens", "heads", "head_dim")

SPEC = Spec(
    name="merge_attn_states_lse",
    summary="output = mean of prefix and suffix weighted by exp(lse), output_lse = log(exp(prefix) + exp(suffix))",
    axes=("tokens", "heads", "head_dim"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="prefix_output", role="input", shape=("tokens", "heads", "head_dim")),
        Tensor(name="prefix_lse", role="input", shape=("heads", "tokens"), dtype="float32", values=LSE),
        Tensor(name="suffix_output", role="input", shape=("tokens", "heads", "head_dim")),
        Tensor(name="suffix_lse", role="input", shape=("heads", "tokens"), dtype="float32", values=LSE),
        Tensor(name="output", role="output", shape=("tokens", "heads", "head_dim")),
        Tensor(name="output_lse", role="output", shape=("heads", "tokens"), dtype="float32"),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="head_dim"),
    ),
    # Per element two products and a sum; per row a maximum, two exps, a log, a sum, two divisions and so on.
    flops="3*tokens*heads*head_dim + 10*tokens*heads",
    library="sgl_kernel.merge_state_v2",
    default_baseline={"cuda": "production"},
    workloads=(
        # The four shapes of Astra's table 4.
        at("cuda", "float16", 512, 32, 256),
        at("cuda", "float16", 512, 40, 128),
        at("cuda", "float16", 768, 32, 256),
        at("cuda", "float16", 512, 64, 128),
        at("cuda", "bfloat16", 512, 40, 128),
        at("cuda", "bfloat16", 768, 32, 256),
        # A prefill of 0.4 GB traffic, eight times the L2 of an H200.
        at("cuda", "float16", 16384, 32, 128),
        at("cuda", "float16", 1, 32, 128, timed=False),
        at("cuda", "bfloat16", 130, 8, 64, timed=False),
        at("cuda", "float16", 9, 5, 36, timed=False),
        at("cuda", "float32", 17, 3, 33, timed=False),
        at("cuda", "float16", 1024, 16, 128, held_out=True),
        at("cuda", "bfloat16", 384, 128, 128, held_out=True),
        at("cuda", "float16", 2000, 8, 64, held_out=True),
        at("cuda", "bfloat16", 8192, 40, 128, held_out=True),
        at("cuda", "float32", 512, 32, 128, held_out=True),
        at("cuda", "float16", 11, 7, 50, timed=False, held_out=True),
        # 75 MB of traffic, twice the last-level cache of the server parts that this was tried on.
        at("cpu", "float32", 1024, 48, 128),
        at("cpu", "float32", 64, 16, 128),
        at("cpu", "bfloat16", 128, 16, 128),
        at("cpu", "float16", 64, 32, 64),
        at("cpu", "bfloat16", 1, 3, 64, timed=False),
        at("cpu", "float16", 9, 5, 37, timed=False),
        at("cpu", "float32", 96, 20, 128, held_out=True),
        at("cpu", "bfloat16", 100, 14, 64, held_out=True),
        at("cpu", "float32", 7, 3, 50, timed=False, held_out=True),
    ),
)
