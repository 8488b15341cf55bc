"""The small functions that generated kernels call, as text: only what a source uses is put into it."""

from __future__ import annotations

import re

from . import block_groups, hopper, recurrences
from .cuda import QUALIFIERS, pieces, whole

CUDA_INCLUDES = "#include <math.h>\n#include <stdint.h>\n"
CUDA_HALVES = {"__nv_bfloat16": "#include <cuda_bf16.h>\n", "__half": "#include <cuda_fp16.h>\n"}
CPP_INCLUDES = "#include <cmath>\n#include <cstdint>\n#include <cstring>\n#include <type_traits>\n"
_ROUND = {
    "int8": "static_cast<int8_t>", "uint8": "static_cast<uint8_t>", "int16": "static_cast<int16_t>",
}  # fmt: skip
SMALL = ("maximum", "minimum", "Pack", "Place", "Moments", "Shifted")
"""Pieces for both devices, by what they are called."""


def prelude(device: str, body: str) -> str:
    """Includes and every function that `body` calls."""
    piece, on_a_gpu, found = pieces(device), device == "cuda", []
    for name in ("float16", "bfloat16"):
        word = {"float16": "__half" if on_a_gpu else "_Float16"}.get(name, "bfloat16")
        if word in body or f"round_to_{name}" in body:
            found.append(piece[f"{name}.{device}"])
    for name, cast in _ROUND.items():
        if f"round_to_{name}(" in body:
            found.append(
                f"template <typename T>\n{QUALIFIERS[device]} int32_t round_to_{name}(T value) {{ return {cast}(value); }}\n"
            )
    small = [name for name in SMALL if re.search(rf"\b{name}\b", body)]
    if not on_a_gpu and "Place" in small:  # a block's extreme says whether its places are looked at
        small = [*small, *(name for name in SMALL[:2] if name not in small)]
        small.sort(key=SMALL.index)
    found += [piece["quotient"]] if on_a_gpu and "Moments" in small else []
    exp, divided = ("exp", "quotient(apart, count)") if on_a_gpu else ("std::exp", "apart / count")
    found += [piece["fold_in_lanes"]] if not on_a_gpu and ("Moments" in small or "fold_in_lanes" in body) else []
    for name in small:
        more = piece.get(f"{name}.{device}", "")
        found.append(piece[name].replace("EXP", exp).replace("QUOTIENT_OF_COUNT", divided) + more)
    found += [piece["in_strips"]] if "in_strips" in body else []
    if on_a_gpu and re.search(r"\b(warp_fold|block_fold|cluster_fold|group_fold)\b", body):
        found += [piece["across"], *(piece[f"across.{name}"] for name in small if f"across.{name}" in piece)]
        found.append(piece["warp_fold"])
        if "block_fold" in body or "cluster_fold" in body:
            found.append(piece["block_fold"])
    if "column_fold" in body:
        found.append(piece["column_fold"])
    found += [
        piece[name] for name, word in (("words", "as_pack"), ("block_scan", "block_scan")) if on_a_gpu and word in body
    ]
    products = set(re.findall(r"\b(multiply_tiles|multiply_thin|multiply_halves|convolve_planes)\b", body))
    if products or "cluster_fold" in body:
        found.append(piece["architectures"])
    if products - {"convolve_planes"}:
        found.append(whole("tiles.cuh"))
    if products & {"multiply_tiles", "multiply_thin"}:
        found.append(whole("tensor_cores.cuh"))
    if "multiply_thin" in products:
        found.append(whole("thin_tiles.cuh"))
    if products - {"multiply_tiles", "multiply_thin"}:
        found.append(whole("hopper.cuh"))
    if "multiply_halves" in products:
        found.append(
            with_wgmma("halves.cuh", "multiply_sixteen(float (&d)[64], uint64_t left, uint64_t right, int adds)")
        )
    if "convolve_planes" in products:
        multiply = "multiply_planes(float (&d)[64], LinesOfPlane left, LinesOfPlane right, int adds = 1)"
        found.append(with_wgmma("planes.cuh", multiply))
    found += [whole("cpu_products.h")] if "multiply_panels" in body else []
    if "cluster_fold" in body:
        found.append(whole("clusters.cuh"))
    if "group_fold" in body:
        found.append(block_groups.prelude())
    if on_a_gpu and ("round_to_tf32_even" in body or "Recurrence" in body):
        found.append(piece["round_to_tf32_even"])
    if "Recurrence" in body:
        found.append(recurrences.prelude(device))
    includes = "".join(include for word, include in CUDA_HALVES.items() if word in body + "".join(found))
    return (includes + CUDA_INCLUDES if on_a_gpu else CPP_INCLUDES + "\n" + whole("vector_math.h")) + "".join(
        "\n" + text for text in found
    )


def with_wgmma(name: str, function: str) -> str:
    """The file with the instruction for a warp group's 64 x 128 sums in it."""
    return whole(name).replace("// WGMMA\n", hopper.wgmma(function, 128))
