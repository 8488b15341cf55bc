"""Programmatic dependent launch (Hopper and later): a grid is set up while the one before it on the stream drains.

Every kernel of the file waits for its predecessors (`cudaGridDependencySynchronize`) before it touches memory, so nothing
is read early; what overlaps is the launch itself, about half a microsecond where kernels follow each other in a graph.
"""

from __future__ import annotations

import re

from nodes.rewrites import Facts
from nodes.rewrites.device_code import Code, Kernel, Launch, require
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"latency", "launch", "memory"})
EXPECTED = "hides most of the launch latency between kernels of a stream or a graph, 0.3 to 0.6 us a call"
SPEEDUP = 1.2
ORDER = 90

LAUNCH = """\
// Launches a kernel that may be set up while its predecessor on the stream drains; it waits on the device itself.
template <typename... Parameters, typename... Arguments>
inline void launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                             Arguments... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
"""
WAIT = "cudaGridDependencySynchronize();  // nothing before this may touch memory"
TRIGGER = "cudaTriggerProgrammaticLaunchCompletion();"


def rewrite(source: Source, facts: Facts) -> str | None:
    match = re.fullmatch(r"sm_(\d+)[a-z]?", facts.device.architecture)
    if match is None or int(match[1]) < 90 or "cudaGridDependencySynchronize" in source.text:
        return None
    code = Code(source)
    kernels = [kernel for kernel in code.kernels if kernel.launches]
    launched = {launch.kernel_name for launch in code.launches}
    if not kernels or launched != {kernel.name for kernel in kernels} or len({k.name for k in kernels}) != len(kernels):
        return None  # a kernel that does not wait must not be launched so, and one of them may be out of sight
    edits = Edits(source)
    try:
        for kernel in kernels:
            indent = source.indent(kernel.node) + source.unit(kernel.body)
            edits.insert(kernel.body.start_byte + 1, f"\n{indent}{WAIT}\n{indent}{TRIGGER}")
            for launch in kernel.launches:
                edits.replace(launch.node, launch.rendered(function=named(kernel, launch), dependent=True))
        require(edits, code, LAUNCH, "launch_dependent", includes=("cuda_runtime.h",))
        return edits.apply()
    except Unsupported:
        return None


def named(kernel: Kernel, launch: Launch) -> str:
    """The kernel with all its template arguments, so that it can be pointed at."""
    text = kernel.source.of
    names = kernel.template_names
    if len(launch.template_arguments) == len(names):
        return text(launch.function)
    parameters = [p.name for p in kernel.parameters]
    deduced = []
    for name in names[len(launch.template_arguments) :]:
        typed = [p.name for p in kernel.parameters if p.pointer and p.element == name]
        if not typed:
            raise Unsupported(f"template argument {name} of {kernel.name} is deduced")
        deduced.append(f"std::decay_t<decltype(*{text(launch.arguments[parameters.index(typed[0])])})>")
    function = text(launch.function).split("<")[0].rstrip()
    return f"{function}<{', '.join([*launch.template_arguments, *deduced])}>"
