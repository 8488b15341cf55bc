"""Attention of one query a sequence over a paged cache: the larger part of what decoding costs."""

from kernels.spec import Scalar, Size, Spec, Tensor, sizes

at = sizes("seqs", "heads", "kv_heads", "pages", "table", dtype="bfloat16")
TOUCHED = "seqs*table*12*kv_heads*128"  # of 16 a page: lengths are between a half and all of the table

SPEC = Spec(
    name="paged_decode_attention",
    summary="out[s][h] = softmax(scale * query[s][h] . keys of sequence s) values, head h of its heads / kv_heads; pages of 16 tokens by block_table",
    axes=("seqs", "heads", "kv_heads", "pages", "table"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="query", role="input", shape=("seqs", "heads", "128")),
        Tensor(name="key_cache", role="input", shape=("pages", "16", "kv_heads", "128"), touched=TOUCHED),
        Tensor(name="value_cache", role="input", shape=("pages", "16", "kv_heads", "128"), touched=TOUCHED),
        Tensor(name="block_table", role="input", shape=("seqs", "table"), dtype="int32", values=("index:pages",)),
        Tensor(name="lengths", role="input", shape=("seqs",), dtype="int32", values=("drawn:lengths",)),
        Tensor(name="partial", role="workspace", shape=("seqs", "heads", "16", "130"), dtype="float32"),
        Tensor(name="out", role="output", shape=("seqs", "heads", "128")),
        Size(name="seqs"),
        Size(name="heads"),
        Size(name="kv_heads"),
        Size(name="pages"),
        Size(name="table"),
        Scalar(name="scale", value=0.08838834764831845),
    ),
    flops="4*seqs*table*12*heads*128",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Heads of Qwen3-30B-A3B, Llama-3-8B and 70B; the public profile that README names counts only contexts of 128 tokens.
        at("cuda", 1, 4, 1, 64, 8, weight=465),
        at("cuda", 4, 32, 4, 2048, 256, weight=465),
        at("cuda", 32, 32, 8, 4096, 128, weight=465),
        at("cuda", 16, 64, 8, 8192, 512, weight=465),
        at("cuda", 2, 4, 2, 9, 3, timed=False),
        at("cuda", 3, 3, 3, 7, 3, timed=False),
        at("cuda", 1, 32, 8, 4096, 512, weight=465, held_out=True),
        at("cuda", 64, 32, 4, 8192, 64, weight=465, held_out=True),
        at("cuda", 2, 3, 1, 12, 5, timed=False, held_out=True),
        at("cpu", 12, 32, 8, 1536, 128, weight=1),
        at("cpu", 1, 4, 1, 64, 8, weight=1),
        at("cpu", 2, 4, 2, 9, 3, timed=False),
        at("cpu", 3, 3, 3, 7, 3, timed=False),
        at("cpu", 4, 8, 2, 256, 32, weight=1, held_out=True),
        at("cpu", 2, 3, 1, 12, 5, timed=False, held_out=True),
    ),
)
