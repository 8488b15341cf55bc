"""RMS norm of every head of a query, a warp a head."""

from kernels.spec import Scalar, Size, Spec, Tensor, Workload


def at(dtype: str, tokens: int, heads: int, head_dim: int, **more: bool) -> Workload:
    return Workload(
        axes={"tokens": tokens, "heads": heads, "head_dim": head_dim}, dtype=dtype, devices=("cuda",), **more
    )


SPEC = Spec(
    name="head_rms_norm",
    summary="q = q / rms(q) * weight, each head of each token for itself, in place",
    axes=("tokens", "heads", "head_dim"),
    dtypes=("float16", "bfloat16"),
    arguments=(
        Tensor(name="q", role="inout", shape=("tokens", "heads", "head_dim")),
        Tensor(name="weight", role="input", shape=("head_dim",)),
        Size(name="tokens"),
        Size(name="heads"),
        Size(name="head_dim"),
        Scalar(name="eps", value=1e-6),
    ),
    flops="4*tokens*heads*head_dim",
    default_baseline={"cuda": "plain"},
    workloads=(
        at("bfloat16", 64, 32, 128),
        at("bfloat16", 2048, 32, 128),
        at("float16", 16384, 64, 128),
        at("bfloat16", 3, 5, 128, timed=False),
        at("float16", 1, 1, 96, timed=False),
        at("float16", 7, 3, 64, timed=False),
        at("bfloat16", 1000, 40, 128, held_out=True),
    ),
)
