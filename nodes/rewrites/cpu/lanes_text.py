"""What of `prelude/lanes.h`, C++ over sixteen lanes, a source needs, and functions of the C library over lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodes.rewrites.cpu.vector_math import VECTOR_FUNCTIONS
from nodes.rewrites.prelude import text_of

_BY_LIBRARY = """
static inline lanes {name}_lanes({parameters}) {{
#pragma omp simd simdlen(16)
    for (int64_t lane = 0; lane < LANES; ++lane) {{
        x[lane] = {name}f({arguments});
    }}
    return x;
}}
"""
"""g++ takes the library's own for vectors where vector_math declares that."""


def _blocks() -> Iterator[str]:
    """What belongs together, as two empty lines part it; functions of one line come one by one, with the comment above them."""
    for group in text_of("lanes", ".h").split("\n\n\n"):
        if all(line.startswith(("static", "//")) for line in group.splitlines()):
            yield from re.findall(r"(?:^//.*\n)?^static.*\n", group.rstrip() + "\n", re.MULTILINE)
        else:
            yield f"\n{group.rstrip()}\n"
    for name, count in VECTOR_FUNCTIONS.items():
        if name != "expf":
            names = ("x", "y")[:count]
            parameters, given = (", ".join(form.format(each) for each in names) for form in ("lanes {}", "{}[lane]"))
            yield _BY_LIBRARY.format(name=name.removesuffix("f"), parameters=parameters, arguments=given)


_FIRST, *_BLOCKS = _blocks()
"""In order, each after what it is made of."""
_DEFINED = re.compile(r"^(?:static inline|typedef|constexpr) .*?(\w+)(?:\(| =| __attribute__)", re.MULTILINE)
NAMES = frozenset(name for block in (_FIRST, *_BLOCKS) for name in _DEFINED.findall(block))
"""Names that a source must leave free."""


def text(wanted: str, bfloat16: str) -> str:
    """The definitions of what a source names and does not define yet; `bfloat16` is its own type of that name, or ""."""
    used, parts = set(re.findall(r"\w+", wanted)), []
    for block in reversed(_BLOCKS):
        of_bytes = "store_bytes" in block and not used & {"int8_t", "uint8_t"}
        if not of_bytes and (bfloat16 or "BFLOAT16" not in block) and used & set(_DEFINED.findall(block)):
            used |= set(re.findall(r"\w+", block))
            parts.append(block.replace("BFLOAT16", bfloat16))
    return "".join(part for part in (_FIRST, *reversed(parts)) if part.strip() not in wanted)
