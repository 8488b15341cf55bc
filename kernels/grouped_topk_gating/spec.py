"""Experts of each token as DeepSeek-V3 picks them: sigmoid scores, four of eight groups by their two best, eight experts of these."""

from kernels.spec import Scalar, Size, Spec, Tensor, sizes

at = sizes("tokens", "experts", dtype="float32")

SPEC = Spec(
    name="grouped_topk_gating",
    summary="ids[t] = the 8 experts of largest sigmoid(logits) + bias among the 4 of 8 groups whose two largest sum to most; weights = their sigmoids, scaled to sum to `scale`",
    axes=("tokens", "experts"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="logits", role="input", shape=("tokens", "experts"), values=("ordinary", "normal:0:3")),
        Tensor(name="bias", role="input", shape=("experts",), values=("range:-0.1:0.1",), constant=True),
        Tensor(name="weights", role="output", shape=("tokens", "8")),
        Tensor(name="ids", role="output", shape=("tokens", "8"), dtype="int32"),
        Size(name="tokens"),
        Size(name="experts"),
        Scalar(name="scale", value=2.5),
    ),
    flops="6*tokens*experts",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names.
        at("cuda", 129, 128, weight=28),
        at("cuda", 520, 128, weight=94),
        at("cuda", 8192, 128, weight=1880),
        at("cuda", 8037, 256, weight=60),
        at("cuda", 13526, 256, weight=60),
        at("cuda", 3, 64, timed=False),
        at("cuda", 5, 96, timed=False),
        at("cuda", 256, 128, weight=112, held_out=True),
        at("cuda", 4083, 128, weight=60, held_out=True),
        at("cuda", 7, 256, timed=False, held_out=True),
        at("cpu", 4096, 256, weight=1),
        at("cpu", 64, 128, weight=1),
        at("cpu", 3, 64, timed=False),
        at("cpu", 5, 96, timed=False),
        at("cpu", 512, 128, weight=1, held_out=True),
        at("cpu", 7, 256, timed=False, held_out=True),
    ),
)
