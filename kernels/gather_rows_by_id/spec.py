"""Rows of a feature table by node id: what SALIENT calls slicing."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("nodes", "rows", "width")

SPEC = Spec(
    name="gather_rows_by_id",
    summary="out[i] = table[ids[i]], zeros where ids[i] is -1",
    axes=("nodes", "rows", "width"),
    dtypes=("float16", "bfloat16", "float32"),
    arguments=(
        Tensor(name="table", role="input", shape=("nodes", "width"), touched="rows*width", constant=True),
        Tensor(name="ids", role="input", shape=("rows",), dtype="int32", values=("padded:nodes",)),
        Tensor(name="out", role="output", shape=("rows", "width"), ulps=1.0),
        Size(name="nodes"),
        Size(name="rows"),
        Size(name="width"),
    ),
    library="torch.index_select",
    default_baseline={"cuda": "production"},
    workloads=(
        # 1,024 seeds at fanouts 15, 10, 5 need 511,000 rows of 128 (ogbn-papers100M); ogbn-products has 100.
        at("cuda", "float16", 8_000_000, 511_000, 128),
        at("cuda", "float16", 2_449_029, 200_000, 100),
        at("cuda", "bfloat16", 2_000_000, 118_000, 128),
        at("cuda", "float32", 2_000_000, 118_000, 128),
        at("cuda", "float16", 5000, 700, 33, timed=False),
        at("cuda", "bfloat16", 3000, 111, 100, timed=False),
        at("cuda", "float32", 1000, 65, 7, timed=False),
        at("cuda", "float16", 4_000_000, 300_000, 256, held_out=True),
        at("cuda", "bfloat16", 1_000_000, 90_000, 768, held_out=True),
        at("cuda", "float32", 1001, 77, 129, timed=False, held_out=True),
        at("cpu", "float16", 1_000_000, 160_000, 128),
        at("cpu", "float32", 200_000, 20_000, 100),
        at("cpu", "bfloat16", 100_000, 13_000, 64),
        at("cpu", "float16", 700, 300, 33, timed=False),
        at("cpu", "bfloat16", 900, 111, 100, timed=False),
        at("cpu", "float32", 1000, 65, 7, timed=False),
        at("cpu", "float16", 300_000, 50_000, 100, held_out=True),
        at("cpu", "float32", 1001, 77, 129, timed=False, held_out=True),
    ),
)
