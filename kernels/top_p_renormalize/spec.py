"""The likeliest tokens that make up a share of the probability, brought to sum one: what sampling by top-p does before it draws."""

from kernels.spec import Size, Spec, Tensor, sizes

at = sizes("rows", "vocabulary", dtype="float32")

SPEC = Spec(
    name="top_p_renormalize",
    summary="a token stays if those that are likelier than it sum to less than top_p of its row; out = what stays, divided by its sum, else 0",
    axes=("rows", "vocabulary"),
    dtypes=("float32",),
    arguments=(
        Tensor(
            name="probabilities", role="input", shape=("rows", "vocabulary"), values=("drawn:draw_peaked", "drawn:flat")
        ),
        Tensor(name="top_p", role="input", shape=("rows",), values=("drawn:shares",)),
        Tensor(name="out", role="output", shape=("rows", "vocabulary")),
        Size(name="rows"),
        Size(name="vocabulary"),
    ),
    flops="3*rows*vocabulary",
    nans=False,
    default_baseline={"cuda": "production"},
    workloads=(
        # Once a step of decoding. Vocabularies of Qwen (in the public profile that README names, without counts), Llama and DeepSeek.
        at("cuda", 1, 151936, weight=1),
        at("cuda", 32, 151936, weight=1),
        at("cuda", 128, 128256, weight=1),
        at("cuda", 64, 32000, weight=1),
        at("cuda", 3, 1001, timed=False),
        at("cuda", 5, 64, timed=False),
        at("cuda", 16, 129280, weight=1, held_out=True),
        at("cuda", 128, 151936, weight=1, held_out=True),
        at("cuda", 7, 514, timed=False, held_out=True),
        at("cpu", 64, 128256, weight=1),
        at("cpu", 1, 151936, weight=1),
        at("cpu", 3, 1001, timed=False),
        at("cpu", 5, 64, timed=False),
        at("cpu", 4, 32000, weight=1, held_out=True),
        at("cpu", 7, 514, timed=False, held_out=True),
    ),
)
