"""One step of a causal convolution over time, four taps a channel, with SiLU: the step of decoding in Mamba-like and gated-delta layers."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("batch", "dim", "slots", dtype="bfloat16")

SPEC = Spec(
    name="causal_conv1d_update",
    summary="window = [state[slot[b]], x[b]]; out = silu(sum over 4 taps of window * weight + bias); state[slot[b]] = the window's last 3",
    axes=("batch", "dim", "slots"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="x", role="input", shape=("batch", "dim")),
        Tensor(name="state", role="inout", shape=("slots", "dim", "3"), touched="batch*dim*3"),
        Tensor(name="weight", role="input", shape=("dim", "4"), constant=True),
        Tensor(name="bias", role="input", shape=("dim",), constant=True),
        Tensor(name="slot", role="input", shape=("batch",), dtype="int32", values=("permutation:slots",)),
        Tensor(name="out", role="output", shape=("batch", "dim")),
        Size(name="batch"),
        Size(name="dim"),
        Size(name="slots"),
    ),
    flops="12*batch*dim",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names; 1024 sequences of 8192 channels leave the cache.
        at("cuda", 1, 4096, 16, weight=17910),
        at("cuda", 128, 4096, 256, weight=21),
        at("cuda", 256, 4096, 512, weight=21),
        at("cuda", 1024, 8192, 1024, weight=84),
        at("cuda", 3, 100, 7, timed=False),
        at("cuda", 5, 33, 5, timed=False),
        at("cuda", 1, 8192, 16, weight=45, held_out=True),
        at("cuda", 514, 4096, 600, weight=21, held_out=True),
        at("cuda", 2, 77, 4, timed=False, held_out=True),
        at("cpu", 512, 8192, 512, weight=1),
        at("cpu", 1, 4096, 16, weight=1),
        at("cpu", 3, 100, 7, timed=False),
        at("cpu", 5, 33, 5, timed=False),
        at("cpu", 16, 4096, 32, weight=1, held_out=True),
        at("cpu", 2, 77, 4, timed=False, held_out=True),
    ),
)
