"""Rows of a table, picked by an index: an embedding look-up or a mini-batch of node features."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, picks: int, width: int, rows: int = 65536, **more: bool) -> Workload:
    return Workload(axes={"picks": picks, "width": width, "rows": rows}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="gather_rows",
    summary="out[i] = table[index[i]]",
    axes=("picks", "width", "rows"),
    dtypes=("float16", "float32"),
    arguments=(
        Tensor(name="table", role="input", shape=("rows", "width"), values=("ordinary",), touched="picks*width"),
        Tensor(name="index", role="input", shape=("picks",), dtype="int64", values=("index:rows",)),
        Tensor(name="out", role="output", shape=("picks", "width")),
        Size(name="picks"),
        Size(name="width"),
    ),
    default_baseline={"cuda": "plain"},
    workloads=(
        at("float16", 512, 4096),
        at("float16", 65536, 128),
        at("float32", 8192, 1024),
        at("float16", 7, 33, 50, timed=False),
        at("float16", 9, 136, 50, timed=False),
        at("float32", 5, 512, 20, timed=False),
        at("float16", 262144, 256, held_out=True),
    ),
)
