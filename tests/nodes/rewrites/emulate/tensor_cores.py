"""For the emulation: PTX in a source becomes calls of `tensor_cores.h`, so that tiles, rings, barriers and edges can be tried without a GPU.

Known are cp.async, ldmatrix, mma.sync m16n8k16 of halves and bfloat16 and m16n8k8 of TF32, mbarriers, TMA with 128-byte swizzle (also to the blocks of a pair), wgmma with
operands of 16 bits (halves also in lines of 16 bytes beside one another), bulk copies, named barriers and clusters. What cp.async brings is there when its group is waited for; boxes of TMA are there at once
and products are computed in place, so a wait that is missing there is not found out; a barrier that is waited for wrongly is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Operands = list[tuple[str, str]]
"""Constraint and expression, outputs first."""
NOTHING = r"^$|wgmma\.(fence|commit_group|wait_group)|setmaxnreg|fence\."


def _args(operands: Operands) -> str:
    return ", ".join(expression for _, expression in operands)


def _number(text: str, operands: Operands) -> str:
    return operands[int(text[1:])][1] if text.startswith("%") else text


def _wgmma(found: re.Match[str], operands: Operands) -> str:
    outs = [expression for constraint, expression in operands if constraint == "+f"]
    of = "_lines" if found[0].endswith("0, 0;") else ""
    if told := re.search(r"(b?f16)\.b?f16 .* 1, 1, ([01]), ([01]);", found[0]):
        kind, left, right = told.groups()
        if kind == "bf16" or left == "1":
            of = f"_of<{'__nv_bfloat16' if kind == 'bf16' else '__half'}, {left}, {right}>"
    sums = ", ".join(f"&({one})" for one in outs)
    return (
        f"{{ float* const sums[] = {{{sums}}}; tensor::wgmma{of}(sums, {len(outs)}, {_args(operands[len(outs) :])}); }}"
    )


CALLS: list[tuple[str, Callable[[re.Match[str], Operands], str]]] = [
    (NOTHING, lambda _, __: ";"),
    (r"cp\.async\.c[ag]\.shared\.global \[%0\], \[%1\], (\d+), %2", lambda m, o: f"tensor::copy({_args(o)}, {m[1]});"),
    (r"cp\.async\.mbarrier\.arrive\.noinc", lambda _, o: f"{{ __pipeline_commit(); __pipeline_wait_prior(0); tensor::arrive({_args(o)}, emulate::rank); }}"),
    (r"cp\.async\.commit_group", lambda _, __: "__pipeline_commit();"),
    (r"cp\.async\.wait_group (%0|\d+)", lambda m, o: f"__pipeline_wait_prior({_number(m[1], o)});"),
    (r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32", lambda _, o: f"tensor::mma_tf32({_args(o)});"),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?", lambda m, o: f"tensor::ldmatrix({str(bool(m[1])).lower()}, {_args(o)});"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32", lambda _, o: f"tensor::mma<__half>({_args(o)});"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32", lambda _, o: f"tensor::mma<__nv_bfloat16>({_args(o)});"),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.b?f16\.b?f16 .*adds, 1, 1, [01], [01];", _wgmma),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.f16\.f16 .*(adds|1), 1, 1, 0, 0;", _wgmma),
    (r"mbarrier\.init\S* \[%0\], (\S+);", lambda m, o: f"tensor::init({o[0][1]}, {_number(m[1], o)});"),
    (r"mbarrier\.arrive\.expect_tx", lambda _, o: f"tensor::expect({_args(o)});"),
    (r"mbarrier\.try_wait\.parity", lambda _, o: f"tensor::wait({_args(o)});"),
    (r"mbarrier\.test_wait\.parity", lambda _, o: f"{o[0][1]} = tensor::passed({_args(o[1:])});"),
    (r"mapa\.shared::cluster.*mbarrier\.arrive", lambda _, o: f"tensor::arrive({_args(o)});"),
    (r"mbarrier\.arrive\.shared::cta", lambda _, o: f"tensor::arrive({_args(o)}, emulate::rank);"),
    (r"cp\.async\.bulk\.shared::cluster\.global", lambda _, o: f"tensor::bulk({_args(o)});"),
    (r"cp\.async\.bulk\.tensor\.[23]d.*multicast::cluster", lambda _, o: f"tensor::box_for({o[5][1]}, {_args(o[:5] + o[6:])});"),
    (r"cp\.async\.bulk\.tensor\.[345]d.*im2col", lambda _, o: f"tensor::window_for({_args(o)});"),
    (r"cp\.async\.bulk\.tensor\.[23]d", lambda _, o: f"tensor::box_for(1u << emulate::rank, {_args(o)});"),
    (r"bar\.sync 1, %0", lambda _, o: f"tensor::named_barrier({_args(o)});"),
    (r"ld\.volatile\.global\.(?:v\d\.)?u32", lambda _, o: f"tensor::read_now({_args(o)});"),
    (r"mov\.u32 %0, %%cluster_ctarank", lambda _, o: f"{o[0][1]} = emulate::rank;"),
    (r"barrier\.cluster\.arrive", lambda _, __: "emulate::meet(emulate::whole_cluster);"),
]  # fmt: skip
"""What an instruction becomes; the first that fits counts."""


def translated(text: str) -> str:
    """The source without PTX. Raises ValueError for an instruction that is not known."""
    made, at = [], 0
    while (start := text.find("asm volatile(", at)) >= 0:
        end = _closed(text, start + len("asm volatile"))
        made += [text[at:start], _called(text[start + len("asm volatile(") : end - 1])]
        at = end + text[end:].index(";") + 1
    text = (
        "".join([*made, text[at:]])
        .replace("#include <cuda.h>\n", "")
        .replace("__shared__ __align__(128) char", "__shared__ char")
        .replace("__shared__ __align__(16) float", "__shared__ float")
        .replace("__shared__ __align__(1024) float", "__shared__ float")
    )
    if blocks := re.search(r"__cluster_dims__\((\d+), 1, 1\) ", text):  # a launch says it here, the kernel on a GPU
        text = text.replace(blocks[0], "")
        launch = r"(\w+<\w+>)<<<(\w+), (\w+), ([\w<>]+), stream>>>\((.*?)\);"
        call = rf"emulate::launch(dim3(\2), dim3(\3), \4, [&] {{ \1(\5); }}, {blocks[1]});"
        text = re.sub(rf"(?<=    ){launch}(?=\n    return true;)", call, text)
    return f'#include "tensor_cores.h"\n{text}'


def _closed(text: str, at: int) -> int:
    """Behind the parenthesis that closes the one at `at`; those in strings do not count."""
    depth = 0
    for token in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(text, at):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    raise ValueError("a parenthesis is not closed")


def _called(inside: str) -> str:
    literals = re.match(r'\s*((?:"(?:[^"\\]|\\.)*"\s*)*)', inside)
    assert literals is not None
    template = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals[1])).replace("\\n", " ")
    operands: Operands = []
    for constraint in re.finditer(r'"([=+]?[a-z])"\s*(?=\()', inside[literals.end() :]):
        begin = literals.end() + constraint.end()
        operands.append((constraint[1], inside[begin + 1 : _closed(inside, begin) - 1]))
    for pattern, made in CALLS:
        if found := re.search(pattern, template):
            return made(found, operands)
    raise ValueError(f"PTX that the emulation does not know: {template[:80]}")
