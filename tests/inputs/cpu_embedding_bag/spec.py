"""Bags of rows of a table, each added up."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(bags, size, width, vocabulary, timed=True, held_out=False):
    axes = {"bags": bags, "size": size, "width": width, "vocabulary": vocabulary}
    return Workload(axes=axes, dtype="float32", devices=("cpu",), timed=timed, held_out=held_out)


SPEC = Spec(
    name="cpu_embedding_bag",
    summary="out[b] = sum over j of table[index[b, j]]",
    axes=("bags", "size", "width", "vocabulary"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="table", role="input", shape=("vocabulary", "width"), touched="bags*size*width"),
        Tensor(name="index", role="input", shape=("bags", "size"), dtype="int64", values=("index:vocabulary",)),
        Tensor(name="out", role="output", shape=("bags", "width")),
        Size(name="bags"),
        Size(name="size"),
        Size(name="width"),
        Size(name="vocabulary"),
    ),
    flops="bags*size*width",
    workloads=(
        at(64, 16, 128, 1000),
        at(256, 20, 256, 4000),
        at(1, 1, 1, 1, timed=False),
        at(5, 3, 77, 9, timed=False),
        at(96, 10, 192, 500, held_out=True),
    ),
)
