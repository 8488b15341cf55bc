"""torch.rand's numbers of a CPU, sooner: some 85 billion of them are drawn in six draws of KernelBench's inputs.

`quick_rand` gives the same bits and leaves the same generator behind (MT19937, 24 bits a number), in an eighth of the time
(134 million numbers into memory in use: 0.09 s, torch 0.73 s, an AMD EPYC, 2026-11-27).
"""

from __future__ import annotations

import ctypes
import math
import mmap
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

LEAST = 1 << 20
"""Fewer elements are torch's own."""
COMPARED = 2000
"""So few that torch begins no threads, which a fork would lack."""
PAGE, LIBC = mmap.PAGESIZE, ctypes.CDLL(None)
MADV_HUGEPAGE = 14
NUMBERS = 624
"""Of a generator's state, and what it gives before the state is made anew."""
SOURCE = """
#include <stdint.h>
enum { N = 624, M = 397 };
static inline uint32_t mix(uint32_t u, uint32_t v) {
  return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ (-(v & 1u) & 0x9908b0dfu);
}
static void twist(uint32_t *s) {
#pragma GCC ivdep
  for (int i = 0; i < N - M; i++) s[i] = s[i + M] ^ mix(s[i], s[i + 1]);
#pragma GCC ivdep
  for (int i = N - M; i < 2 * (N - M); i++) s[i] = s[i + M - N] ^ mix(s[i], s[i + 1]);
#pragma GCC ivdep
  for (int i = 2 * (N - M); i < N - 1; i++) s[i] = s[i + M - N] ^ mix(s[i], s[i + 1]);
  s[N - 1] = s[M - 1] ^ mix(s[N - 1], s[0]);
}
/* next: the place of the first of the state's numbers that was not given yet */
void uniform(uint32_t *state, int64_t *next, float *out, int64_t count) {
  int64_t at = *next;
  while (count > 0) {
    if (at == N) { twist(state); at = 0; }
    int64_t here = count < N - at ? count : N - at;
    for (int64_t i = 0; i < here; i++) {
      uint32_t y = state[at + i];
      y ^= y >> 11; y ^= (y << 7) & 0x9d2c5680u; y ^= (y << 15) & 0xefc60000u; y ^= y >> 18;
      out[i] = (float)(int32_t)(y & 0xffffffu) * 0x1p-24f;
    }
    at += here; out += here; count -= here;
  }
  *next = at;
}
"""


def build(folder: Path) -> Callable[..., torch.Tensor]:
    """`quick_rand` for this machine; torch.rand itself where its numbers are others here or there is no compiler."""
    source, library = folder / "uniform.c", folder / "uniform.so"
    source.write_text(SOURCE)
    compiler = next(filter(shutil.which, ("gcc", "cc", "g++")), "gcc")
    command = [compiler, "-x", "c", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"inputs are drawn by torch.rand, which takes longer: {error}", flush=True)
        return torch.rand
    uniform = ctypes.CDLL(str(library)).uniform
    before = torch.get_rng_state()
    want, after = torch.rand(COMPARED), torch.get_rng_state()
    torch.set_rng_state(before)
    if torch.equal(quick_rand(uniform, 1)(COMPARED), want) and torch.equal(torch.get_rng_state(), after):
        return quick_rand(uniform, LEAST)
    print("inputs are drawn by torch.rand, which takes longer: this torch draws others", flush=True)
    return torch.rand


def quick_rand(uniform: Any, least: int) -> Callable[..., torch.Tensor]:
    torchs = torch.rand

    def rand(*size: Any, **named: Any) -> torch.Tensor:
        shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
        plain = not named and torch.get_default_dtype() == torch.float32 and torch.get_default_device().type == "cpu"
        if not plain or math.prod(shape) < least:
            return torchs(*size, **named)
        out = torch.empty(shape)
        begin, end = -(-out.data_ptr() // PAGE) * PAGE, (out.data_ptr() + out.numel() * 4) // PAGE * PAGE
        LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_HUGEPAGE)
        # torch's state: seed, `left` and a flag in eight bytes, `next`, then the 624 numbers, eight bytes each.
        state = torch.get_rng_state()
        words, left = state.view(torch.int64), state[8:12].view(torch.int32)
        numbers = words[3 : 3 + NUMBERS].to(torch.int32).contiguous()
        place = ctypes.c_int64(NUMBERS if left.item() == 1 else int(words[2]))
        uniform(
            ctypes.c_void_p(numbers.data_ptr()),
            ctypes.byref(place),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int64(out.numel()),
        )
        words[3 : 3 + NUMBERS] = numbers.to(torch.int64) & 0xFFFFFFFF
        words[2], left[0] = place.value, NUMBERS + 1 - place.value
        torch.set_rng_state(state)
        return out

    return rand


def with_rand(rand: Callable[..., torch.Tensor], get_inputs: Callable[[], Any]) -> Callable[[], Any]:
    """get_inputs whose torch.rand is `rand` while it runs."""

    def drawn() -> Any:
        torchs, torch.rand = torch.rand, rand
        try:
            return get_inputs()
        finally:
            torch.rand = torchs

    return drawn
