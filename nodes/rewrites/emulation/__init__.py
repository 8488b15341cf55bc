"""CUDA sources as C++ that computes the same on one thread of a CPU, thread by thread (cuda_emulation.h): right or wrong without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

from tree_sitter import Node

from harness.cpp import without_dead_conditionals
from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.normalize.expand_macros import expanded
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import declared_name

ARCHITECTURE = 900
"""__CUDA_ARCH__ of the emulation."""
FOLDER = Path(__file__).parent
"""Of the headers that the text needs to be compiled."""
HEADERS = (
    "cuda.h",
    "cuda_runtime.h",
    "cuda_runtime_api.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "cooperative_groups.h",
    "cuda_pipeline.h",
    "device_launch_parameters.h",
    "math_constants.h",
)


def host_source(text: str) -> str:
    """The file as C++: launches become calls, shared memory a place in the block's, CUDA's headers the emulation's."""
    text = without_dead_conditionals(text, ARCHITECTURE)  # whose branches may share a brace
    source = Source(expanded(Source(text, "cuda")), "cuda")  # launches may stand in macros
    edits = Edits(source)
    for launch in Code(source).launches:
        of = source.of
        call = f"{of(launch.function)}({', '.join(of(a) for a in launch.arguments)})"
        edits.changes.append((
            launch.node.start_byte, launch.node.end_byte,
            f"emulate::launch({of(launch.grid)}, {of(launch.block)}, {launch.shared_text}, [&] {{ {call}; }})",
        ))  # fmt: skip
    for node in source.walk(None, "declaration"):
        if any(source.of(c) == "__shared__" for c in source.walk(node, "type_qualifier")):
            edits.changes.append((node.start_byte, node.end_byte, _shared(source, node)))
    for node in source.walk(None, "preproc_include"):
        named = re.search(r'include\s*[<"](?:[^>"]*/)?([^>"/]+)[>"]', source.of(node))
        if named and named[1] in HEADERS:
            edits.changes.append((node.start_byte, node.end_byte, "\n"))
    for node in source.walk(None, "preproc_call"):
        if source.of(node).lstrip("# ").startswith("pragma unroll"):
            edits.changes.append((node.start_byte, node.end_byte, "\n"))
    return '#include "cuda_emulation.h"\n' + edits.apply()


def _shared(source: Source, node: Node) -> str:
    """A declaration in shared memory as references into the memory of the running thread's block."""
    declarators = node.children_by_field_name("declarator")
    names = [source.of(declared_name(d)) for d in declarators]
    if any(source.of(c) == "extern" for c in source.walk(node)):
        kind = source.of(node.child_by_field_name("type"))
        return f"{kind}* {names[0]} = reinterpret_cast<{kind}*>(emulate::dynamic_shared[emulate::rank]);"
    held = source.of(node).replace("__shared__", "").replace("static", "").strip()
    place = f"shared_{names[0]}"
    return (
        f"struct {place} {{ {held} }}; static const size_t {place}_at = emulate::reserve(sizeof({place}));"
        f" auto* {place}_here = reinterpret_cast<{place}*>(emulate::static_shared[emulate::rank] + {place}_at);"
        + "".join(f" auto& {name} = {place}_here->{name};" for name in names)
    )


FLAGS = (
    "-std=c++17", "-Og", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
)  # fmt: skip
