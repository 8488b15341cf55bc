"""Deduplicate and renumber: what makes of sampled ids the nodes of a batch."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("nodes", "seeds", "count", "slots", "capacity", dtype="int32")

SPEC = Spec(
    name="relabel",
    summary="unique = the distinct ids, those of the seeds first; unique[local[i]] = ids[i]",
    axes=("nodes", "seeds", "count", "slots", "capacity"),
    dtypes=("int32",),
    arguments=(
        Tensor(name="ids", role="input", shape=("count",), values=("padded:nodes",)),
        Tensor(name="unique", role="output", shape=("capacity",), used="total", touched="count//2"),
        Tensor(name="total", role="output", shape=("1",), dtype="int32"),
        Tensor(name="local", role="output", shape=("count",)),
        # Room for a hash table; what is in it, before and after, is nobody's business.
        Tensor(name="scratch", role="output", shape=("2*slots + count//1024 + 1",), touched="0"),
        Size(name="seeds"),
        Size(name="count"),
        Size(name="slots"),
        Size(name="capacity"),
    ),
    default_baseline={"cuda": "production", "cpu": "production"},
    requires=("slots - 2*count", "0 - (slots & (slots - 1))"),
    workloads=(
        # The second and third hop of 1,024 seeds, fanouts 15, 10, 5.
        at("cuda", 2_200_000, 1024, 16_384, 1 << 16, 16_384),
        at("cuda", 2_200_000, 13_000, 143_000, 1 << 19, 143_000),
        at("cuda", 2_200_000, 118_000, 708_000, 1 << 21, 708_000),
        at("cuda", 100_000_000, 2_000_000, 13_000_000, 1 << 25, 13_000_000),
        at("cuda", 50, 10, 700, 2048, 700, timed=False),
        at("cuda", 100_000, 33, 4097, 16_384, 4097, timed=False),
        at("cuda", 100_000, 100, 9000, 32_768, 2000, timed=False),
        at("cuda", 2_200_000, 60_000, 400_000, 1 << 20, 400_000, held_out=True),
        at("cuda", 1_000, 7, 1023, 4096, 1023, timed=False, held_out=True),
        at("cpu", 20_000_000, 1_000_000, 7_000_000, 1 << 24, 7_000_000),
        at("cpu", 1_000_000, 1024, 16_384, 1 << 16, 16_384),
        at("cpu", 1_000_000, 13_000, 143_000, 1 << 19, 143_000),
        at("cpu", 50, 10, 700, 2048, 700, timed=False),
        at("cpu", 100_000, 33, 4097, 16_384, 4097, timed=False),
        at("cpu", 100_000, 100, 9000, 32_768, 2000, timed=False),
        at("cpu", 1_000_000, 60_000, 400_000, 1 << 20, 400_000, held_out=True),
        at("cpu", 1_000, 7, 1023, 4096, 1023, timed=False, held_out=True),
    ),
)
