"""Causal attention of many queries over keys that are there: the prefill of a prompt, or of a chunk of one behind what a cache holds."""

from kernels.spec import Scalar, Size, Spec, Tensor, sizes

at = sizes("batch", "length", "context", "heads", "kv_heads", dtype="bfloat16")

SPEC = Spec(
    name="prefill_attention",
    summary="out[b][i][h] = softmax(scale * query[b][i][h] . keys up to context - length + i) values, head h of its heads / kv_heads",
    axes=("batch", "length", "context", "heads", "kv_heads"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="query", role="input", shape=("batch", "length", "heads", "128")),
        Tensor(name="key", role="input", shape=("batch", "context", "kv_heads", "128")),
        Tensor(name="value", role="input", shape=("batch", "context", "kv_heads", "128")),
        # Weights are rounded to bfloat16 for the second product, as tensor cores take them.
        Tensor(name="out", role="output", shape=("batch", "length", "heads", "128"), ulps_of_row=2),
        Size(name="batch"),
        Size(name="length"),
        Size(name="context"),
        Size(name="heads"),
        Size(name="kv_heads"),
        Scalar(name="scale", value=0.08838834764831845),
    ),
    requires=("context - length", "heads - kv_heads*(heads//kv_heads)", "kv_heads*(heads//kv_heads) - heads"),
    flops="256*batch*heads*length*(2*context - length + 1)",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Heads and layers of Llama-3-8B and Qwen3-30B-A3B; the third is a chunk behind 3,584 cached tokens.
        at("cuda", 16, 1024, 1024, 32, 8, weight=32),
        at("cuda", 1, 4096, 4096, 32, 8, weight=32),
        at("cuda", 4, 512, 4096, 32, 8, weight=32),
        at("cuda", 2, 2048, 2048, 32, 4, weight=48),
        at("cuda", 3, 5, 7, 6, 3, timed=False),
        at("cuda", 1, 66, 67, 1, 1, timed=False),
        at("cuda", 8, 2048, 2048, 32, 8, weight=32, held_out=True),
        at("cuda", 1, 1000, 3000, 32, 4, weight=48, held_out=True),
        at("cuda", 2, 33, 130, 3, 3, timed=False, held_out=True),
        at("cpu", 32, 128, 128, 32, 8, weight=1),
        at("cpu", 1, 256, 256, 8, 2, weight=1),
        at("cpu", 3, 5, 7, 6, 3, timed=False),
        at("cpu", 1, 66, 67, 1, 1, timed=False),
        at("cpu", 1, 64, 512, 16, 4, weight=1, held_out=True),
        at("cpu", 2, 33, 130, 3, 3, timed=False, held_out=True),
    ),
)
