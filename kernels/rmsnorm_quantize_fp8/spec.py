"""Residual addition, RMS norm and dynamic quantisation to fp8 with a scale a token in one pass, as engines call it between two blocks."""

from kernels.spec import Scalar, Size, Spec, Tensor, sizes

at = sizes("tokens", "hidden", dtype="bfloat16")

SPEC = Spec(
    name="rmsnorm_quantize_fp8",
    summary="residual += input; y = residual / rms(residual) * weight; scales[t] = max(max |y[t]| / 448, 1 / (448 * 512)); out = fp8(y / scales[t])",
    axes=("tokens", "hidden"),
    dtypes=("bfloat16",),
    arguments=(
        Tensor(name="input", role="input", shape=("tokens", "hidden")),
        Tensor(name="residual", role="inout", shape=("tokens", "hidden")),
        Tensor(name="weight", role="input", shape=("hidden",), values=("ordinary", "zeros"), constant=True),
        Tensor(name="out", role="output", shape=("tokens", "hidden"), dtype="float8_e4m3fn"),
        Tensor(name="scales", role="output", shape=("tokens",), dtype="float32"),
        Size(name="tokens"),
        Size(name="hidden"),
        Scalar(name="eps", value=1e-6),
    ),
    flops="8*tokens*hidden",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Sizes and calls of the public profile that README names.
        at("cuda", 117, 2048, weight=2),
        at("cuda", 1769, 2048, weight=59),
        at("cuda", 650, 4096, weight=120),
        at("cuda", 2058, 4096, weight=120),
        at("cuda", 8208, 4096, weight=120),
        at("cuda", 3, 1001, timed=False),
        at("cuda", 5, 264, timed=False),
        at("cuda", 1013, 4096, weight=120, held_out=True),
        at("cuda", 11399, 2048, weight=80, held_out=True),
        at("cuda", 7, 514, timed=False, held_out=True),
        at("cpu", 2400, 4608, weight=1),
        at("cpu", 117, 2048, weight=1),
        at("cpu", 3, 1001, timed=False),
        at("cpu", 5, 264, timed=False),
        at("cpu", 96, 4096, weight=1, held_out=True),
        at("cpu", 7, 514, timed=False, held_out=True),
    ),
)
