"""The drafter's rules: a PyTorch module of KernelBench's form in, a `ModelNew` with kernels of its own out.

    exported.py     the problem's text -> a graph of torch's operators (executes the problem: only in a boxed process); traced.py, limits.py;
                    stays.py: parts that cannot be followed
    loops.py        a loop of many steps, of which one is drafted
    algebra.py      rewrites of that graph that hold for all inputs
    lower_*.py      operators -> formulas and folds over loops (tensors.py); library.py: what stays a call of torch
    split.py        folds with few rows become two
    partition.py    which of them share a kernel
    emit.py         a kernel's text, CUDA or C++ (interface.py: its parameters); cuda/: the functions that it calls, put in by prelude.py; sources.py: entry points, launches
    module.py       the candidate's Python text

Nothing but torch and the standard library is imported, so that the whole runs in the problem's box: `python -I .../compiler/draft`.
"""

from typing import Any

from .tensors import NoDraft

__all__ = ["NoDraft", "answer", "draft"]


def draft(problem: str, device: str, dtype: str | None = None, numerics: str = "eager") -> str:
    """The text of a candidate for the problem, on `cuda` or `cpu`; `dtype` (such as `float16`) casts the problem's floats first.
    `numerics`: `eager` rounds where eager does on a GPU, `fp32` uses no TF32.

    Executes the problem's code. Raises NoDraft, one sentence, where no kernel can be drafted.
    """
    return answer(problem, device, dtype, numerics)["source"]


def answer(problem: str, device: str, dtype: str | None = None, numerics: str = "eager") -> dict[str, Any]:
    """The same with `notes` (what was rewritten and why that holds, what stays with libraries) and `kernels`: name, operators and
    loops, first and last line in the candidate's text."""
    from .drafting import drafted
    from .loops import looped

    return looped(problem, device, dtype, numerics) or drafted(problem, device, dtype, numerics).answer()
