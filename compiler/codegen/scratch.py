"""Memory of an entry for what one kernel makes and a later one reads: the statements around the launches."""

from __future__ import annotations

from compiler.codegen.kernels import in_axes
from compiler.codegen.text import element_type
from compiler.draft.printing import STORED
from compiler.program import KernelProgram


def of_the_pool(program: KernelProgram, calls: list[str]) -> list[str]:
    """Of the stream's, so that it is there in a graph, too."""
    lines, end = ["unsigned char* workspace = nullptr;"], "0"
    for number, buffer in enumerate(program.scratch):
        lines.append(f"const int64_t scratch_{number + 1} = {end};")
        end = f"scratch_{number + 1} + (({in_axes(program, buffer.elements)}) * {buffer.dtype.itemsize} + 255) / 256 * 256"
    lines.append(f"if (cudaMallocAsync(reinterpret_cast<void**>(&workspace), {end} + 256, stream) != cudaSuccess) {{")
    lines += ["    return;", "}"]
    for number, buffer in enumerate(program.scratch):
        type = element_type(buffer.dtype)
        lines.append(f"{type}* {buffer.text} = reinterpret_cast<{type}*>(workspace + scratch_{number + 1});")
    return [*lines, *calls, "cudaFreeAsync(workspace, stream);"]


def of_the_heap(program: KernelProgram, calls: list[str]) -> list[str]:
    lines = []
    for buffer in program.scratch:  # as computed, so of no 16 bits
        type, count = STORED[buffer.dtype], in_axes(program, buffer.elements)
        lines.append(f"const std::unique_ptr<{type}[]> {buffer.text}_memory(new {type}[{count}]);")
        lines.append(f"{type}* {buffer.text} = {buffer.text}_memory.get();")
    return [*lines, *calls]
