"""Groups of a token's elements by a scale each, where the scales of neighbouring tokens lie side by side."""

from kernels.spec import Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, groups: int, size: int, **more: bool) -> Workload:
    return Workload(axes={"tokens": tokens, "groups": groups, "size": size}, dtype=dtype, devices=("cuda",), **more)


SPEC = Spec(
    name="rescale_groups",
    summary="out[token][group] = x[token][group] * scale[group][token]",
    axes=("tokens", "groups", "size"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="x", role="input", shape=("tokens", "groups", "size")),
        Tensor(name="scale", role="input", shape=("groups", "tokens"), dtype="float32", values=("range:0.5:2",)),
        Tensor(name="out", role="output", shape=("tokens", "groups", "size")),
        Size(name="tokens"),
        Size(name="groups"),
        Size(name="size"),
    ),
    flops="tokens*groups*size",
    workloads=(
        at("float16", 512, 32, 128),
        at("bfloat16", 1024, 56, 128),
        at("bfloat16", 16384, 32, 128),
        at("float16", 33, 3, 64, timed=False),
        at("bfloat16", 19, 5, 36, timed=False),
        at("float16", 1, 4, 128, timed=False),
        at("float16", 300, 40, 128, held_out=True),
    ),
)
