"""Prompts from files: nodes/prompts/<role>.md, Jinja2 with two blocks, `system` and `user`; an undefined variable is
an error. The system half is the same for every role over a whole run, and a user half begins with what its role is told every
time, so that servers which keep the prefixes of prompts can do so."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.backends.cuda import architecture_flag
from harness.records import DeviceFacts, Timing
from harness.store import digest
from harness.timing import comparison
from harness.timing.load import DISTURBED
from kernels.catalog import describe_drawing
from kernels.family import Family
from kernels.spec import DRAWN, Device, Scalar, Size, Spec, Tensor
from nodes import ledger
from nodes.knowledge import families_of, render_pages
from nodes.ledger import LedgerEntry
from nodes.lesson import Lesson
from nodes.policies.transcript import Message
from nodes.policies.trim import printable, trim
from nodes.rewrites import catalog
from nodes.roles import Attempt

PROMPTS = Path(__file__).parent.parent / "prompts"
SHORT = 12
"""Hex digits of a source's hash that a prompt shows, and that an answer may name it by."""
SOURCE_CHARS = 60_000
DIFF_LINES = 60
LESSON_GAINS = 6
LEDGER_SOURCES = 40
"""Ledger entries that a prompt shows, the latest ones; a tool reads all."""
READINGS_CHARS = 600
"""Characters of one probe's readings that a prompt shows."""
LISTING_CHARS = 900
"""Characters of hot loops' instructions that a prompt shows; `profile` shows all."""
HEADERS = (
    "<cuda_runtime.h>", "<cuda_fp16.h>", "<cuda_bf16.h>", "<cuda_fp8.h>", "<mma.h>", "<cooperative_groups.h>",
    "<cooperative_groups/reduce.h>", "<cooperative_groups/memcpy_async.h>", "<cuda/barrier>", "<cuda/pipeline>", "<cuda/ptx>",
    "<cuda.h>",
)  # fmt: skip
"""Headers of the toolkit that a candidate may want; <cuda.h> for types only, since only the runtime is linked."""

_C_TYPES: dict[Device, dict[str, str]] = {
    "cuda": {
        "float16": "__half",
        "bfloat16": "__nv_bfloat16",
        "float8_e4m3fn": "__nv_fp8_e4m3",
        "float8_e5m2": "__nv_fp8_e5m2",
    },
    "cpu": {"float16": "_Float16", "bfloat16": "uint16_t", "float8_e4m3fn": "uint8_t", "float8_e5m2": "uint8_t"},
}
_COMMON_C_TYPES = {
    "float64": "double", "float32": "float", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
    "int8": "int8_t", "uint32": "uint32_t", "uint16": "uint16_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip


def c_type(dtype: str, device: Device) -> str:
    """The C type behind a pointer to that dtype; on a CPU the bits of bfloat16 and float8."""
    return _C_TYPES[device].get(dtype) or _COMMON_C_TYPES[dtype]


def prototypes(spec: Spec, device: Device) -> tuple[str, ...]:
    """The C declaration of the entry point, one for each dtype of the spec, in the spec's argument order."""
    declarations = []
    for dtype in spec.dtypes:
        parts = []
        for argument in spec.arguments:
            if isinstance(argument, Tensor):
                constant = "const " if argument.role == "input" else ""
                parts.append(
                    f"{constant}{c_type(dtype if argument.dtype == 'T' else argument.dtype, device)}* {argument.name}"
                )
            elif isinstance(argument, Size):
                parts.append(f"int64_t {argument.name}")
            elif isinstance(argument, Scalar):
                parts.append(f"{argument.ctype} {argument.name}")
        if device == "cuda":
            parts.append("cudaStream_t stream")
        declarations.append(f'extern "C" void {spec.entry_names(dtype)[0]}({", ".join(parts)});')
    return tuple(declarations)


NAMED_WORDS = {
    "ordinary": "normal random numbers", "large": "30 times as large", "tiny": "squares underflow",
    "zeros": "half of them zero", "outliers": "one of 1000 is 300 times as large", "infinities": "a tenth of them infinite",
    "zero_rows": "a tenth of the rows zero",
    "uniform": "from [0, 1)", "scaled": "from [0, s), s drawn",
}  # fmt: skip
"""Distribution of floating-point numbers -> what it draws, as harness/checks/drawing.py does."""
VALUE_WORDS = {
    "bits": "any bits", "index": "whole numbers in [0, {0})", "padded": "whole numbers in [-1, {0})",
    "distinct": "different whole numbers in [-1, {0})", "permutation": "different whole numbers in [0, {0})",
    "offsets": "row pointers that end at {0}", "starts": "row pointers up to {0}", "below": "whole numbers below `{0}` in the same place",
    "range": "numbers in [{0}, {1})", "normal": "normal random numbers of mean {0} and deviation {1}",
    "integers": "whole numbers in [{0}, {1})", "given": "what get_inputs() draws", "near": "the same with other low bits",
    "among": "values that occur there, in other places",
}  # fmt: skip
"""The same of the other distributions; {0} and {1} are what stands behind their names."""
ROLE_WORDS = {
    "input": "read", "output": "written", "inout": "read and written in place",
    "workspace": "scratch memory of yours: anything stands in it before a call, nobody reads it after one",
}  # fmt: skip
DRAWN_CHARS = 300
"""Characters of what an inputs.py says of its own distribution."""
REFERENCE_CHARS = 6_000
"""Characters of a kernel's reference that a prompt shows."""


def value_words(tensor: Tensor, values: str) -> str:
    """A distribution of an input: its name where `value_legend` says what it is, else what it draws."""
    kind, *rest = values.split(":")
    if kind == DRAWN:
        return f"this operation's own values ({describe_drawing(rest[0])[:DRAWN_CHARS]})"
    if tensor.dtype != "T" and "float" not in tensor.dtype and kind in NAMED_WORDS:
        return "whole numbers below 127"
    return VALUE_WORDS.get(kind, kind).format(*rest)


def value_legend(spec: Spec) -> str:
    """What the named distributions of the inputs draw, those that occur."""
    there = {values for tensor in spec.inputs for values in tensor.values}
    return "; ".join(f"{name}: {words}" for name, words in NAMED_WORDS.items() if name in there)


def float_inputs(spec: Spec) -> list[str]:
    return [tensor.name for tensor in spec.inputs if tensor.dtype == "T" or "float" in tensor.dtype]


def describe_tensor(tensor: Tensor) -> str:
    """A tensor's role in a call, and what stands in it."""
    said = [ROLE_WORDS[tensor.role]]
    if tensor.strides:
        steps = ", ".join(tensor.strides)
        said.insert(
            0, f"strides in elements [{steps}] (what lies between its rows is not the call's: neither read nor written)"
        )
    if tensor.constant:
        said.append("kept by the model between calls")
    if tensor.touched:
        said.append(f"of which a call touches {tensor.touched} elements")
    if tensor.role not in ("input", "inout"):
        return ", ".join(said)
    first, *more = dict.fromkeys(value_words(tensor, values) for values in tensor.values)
    also = f", checked with {', '.join(more)} too" if more else ""
    return f"{', '.join(said)}; timed with {first}{' values' if first in NAMED_WORDS else ''}{also}"


def data(text: str, name: str, language: str = "") -> str:
    """`text` between marks that it cannot contain: they carry the hash of the text itself."""
    text = printable(text)
    if len(text) > SOURCE_CHARS:
        text = text[:SOURCE_CHARS] + "\n[... cut: too long ...]"
    mark = digest(text)[:SHORT]
    return f"<data {mark}: {name}>\n{text.rstrip()}\n</data {mark}>"


def difference(old: str, new: str) -> str:
    """What another candidate has that the incumbent lacks, as a unified diff of at most DIFF_LINES lines."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "one", "other", lineterm="", n=1))
    more = [f"({len(lines) - DIFF_LINES} more lines)"] if len(lines) > DIFF_LINES else []
    return "\n".join(lines[:DIFF_LINES] + more)


def percent(share: float) -> str:
    """With a decimal below 10 %: 0.3 % and 0.9 % are three times apart."""
    return f"{100 * share:.{1 if share < 0.0995 else 0}f} %"


def timing_table(timings: Sequence[Timing]) -> str:
    """One line a timing, by number; the rates are of the bytes and operations that the spec counts."""
    computes = any(timing.flops for timing in timings)
    rates = ["GB/s", *(["GFLOP/s", "FLOP per byte", "SOL set by"] if computes else [])]
    rows = [
        "number | workload | cache | time_us | sol_us | share of SOL | x baseline [low, high] | comparison | "
        + " | ".join(rates)
    ]
    for number, timing in enumerate(timings, start=1):
        light = "-" if timing.bound_us is None else f"{timing.bound_us:.2f}"
        share = "-" if timing.light_fraction is None else percent(timing.light_fraction)
        speedup = timing.speedup
        moved, flops = timing.moved_bytes, timing.flops
        rate = [f"{moved / timing.time_us / 1e3:.1f}" if moved else "-"]
        if computes:
            rate.append(f"{flops / timing.time_us / 1e3:.1f}" if flops else "-")
            rate.append(f"{flops / moved:.2f}" if flops and moved else "-")
            rate.append("compute" if (timing.compute_us or 0) > (timing.light_us or 0) else "memory")
        rows.append(
            f"{number} | {timing.workload.label} | {timing.cache} | {timing.time_us:.2f} | {light} | {share} | "
            f"{speedup.median:.3f} [{speedup.low:.3f}, {speedup.high:.3f}] | {timing.comparison} | {' | '.join(rate)}"
        )
    if load := max((timing.others or 0.0 for timing in timings), default=0.0):
        said = f"(other processes took up to {load:.0%} of this machine's CPU while they were timed"
        if load >= DISTURBED:  # before the figures: who reads 19 % of SOL plans for four fifths that may not be there
            said += ": times are longer and shares of SOL lower than the code's own, and intervals are wide"
        rows.insert(0, f"{said})")
    return "\n".join(rows)


def readings(probes: dict[str, dict[str, str]]) -> str:
    """What probes read, a line each, a listing of code a line an instruction; those that say nothing here are left out."""
    lines = []
    for name, found in probes.items():
        if not found or "unavailable" in found:
            continue
        listed = {key: value for key, value in found.items() if _LISTED.fullmatch(key)}
        said = ", ".join(f"{key} {value}" for key, value in found.items() if key not in listed)
        lines.append(f"{name}: {said[:READINGS_CHARS]}")
        rows = "".join(f"\n  {key}: {value}" for key, value in listed.items())
        lines += (
            [rows[1 : 1 + LISTING_CHARS].rpartition("\n")[0] if len(rows) > LISTING_CHARS else rows[1:]] if rows else []
        )
    return "\n".join(lines)


_LISTED = re.compile(r"loop \d+ [0-9a-f]+")
"""A reading of harness/probes/hot_loop.py that is an instruction of a loop, by its address."""


def device_lines(device: DeviceFacts) -> list[str]:
    """What is known of the device beside its name, its units and its bandwidth, in sentences."""

    def kib(size: int | None, what: str) -> str:
        return f"{size / 1024:g} KiB {what}" if size else ""

    if device.device == "cuda":
        parts = [
            kib(device.shared_bytes, "of shared memory"), kib(device.shared_block_bytes, "of it for one block at most"),
            f"{device.registers} 32-bit registers" if device.registers else "",
            f"{device.threads} threads" if device.threads else "",
        ]  # fmt: skip
        lead, caches = "A multiprocessor has", kib(device.l2_bytes, "L2")
    else:
        width = f"vector registers of {device.vector_bytes} bytes" if device.vector_bytes else ""
        shared = (
            f"{device.threads_per_core} hardware threads, each counted as a core above"
            if (device.threads_per_core or 1) > 1
            else ""
        )
        parts = [kib(device.l1_bytes, "L1 for data"), kib(device.l2_bytes, "L2"), width, shared]
        lead, caches = "A core has", ""
    known = [part for part in parts if part]
    lines = [f"{lead} {', '.join(known)}."] if known else []
    more = [caches, f"clocks of at most {device.clock_mhz} MHz" if device.clock_mhz else ""]
    if any(more):
        lines.append(f"The device has {', '.join(part for part in more if part)}.")
    if device.generation:
        lines.append(f"It is {device.generation}.")
    if device.huge_pages:
        lies = "lie" if device.huge_pages in ("always", "within_size") else "do not lie"
        lines.append(f"Tensors {lies} in huge pages.")
    if device.instructions:
        lines.append(f"Instructions: {', '.join(device.instructions)}.")
    return lines


def roof_lines(device: DeviceFacts) -> list[str]:
    """What it reaches at most, as measured (harness/timing/roofs.py)."""
    found = [f"a large copy {device.bandwidth_gbps:.0f} GB/s (read plus write)"] if device.bandwidth_gbps else []
    found += [f"one core alone reads {device.core_gbps:.0f} GB/s"] if device.core_gbps else []
    if device.region_us:
        found.append(f"an empty OpenMP region takes {device.region_us:.0f} us (median, under the load at that time)")
    names = {"vector": "multiply-adds on vector units", "matrix": "a library's matrix product"}
    for kind, name in names.items():
        rates = [f"{roof.dtype} {roof.gflops:.0f}" for roof in device.compute if roof.kind == kind]
        found += [f"{name} in GFLOP/s: {', '.join(rates)}"] if rates else []
    return found


def explain_step(step: str) -> str:
    """A plan's step; where it is the name of a rewrite (the rules planned it), with what that rewrite should do."""
    rewrite = catalog().get(step)
    return f"{step}: {rewrite.expected}" if rewrite else step


def ledger_rows(
    trials: Sequence[LedgerEntry], attempts: Sequence[Attempt], timings: Sequence[Timing] = ()
) -> list[str]:
    """`timings`: whose numbers the prompt uses."""
    return ledger.rows(trials, attempts, LEDGER_SOURCES, [(timing.workload.label, timing.cache) for timing in timings])


def lessons(found: Iterable[Lesson]) -> str:
    """What earlier runs learned, one change a paragraph."""
    said = []
    for one in found:
        came = f"{one.gain:.3f}x the source that it was made from" if one.gain else str(one.outcome)
        came += f", {one.speedup:.3f}x the baseline" if one.speedup else ""
        words = [f"- {one.kernel} ({one.family}) on {one.device_name}, {one.architecture}, bound: {one.bound}"]
        words.append(f"  change: {one.title}: {'; '.join(one.steps)}")
        words.append(f"  {came}; {'kept' if one.kept else 'not kept'}{f': {one.reason}' if one.reason else ''}")
        gains = [f"{gain.workload}, {gain.cache} {gain.median:.2f}x" for gain in one.gains[:LESSON_GAINS]]
        words += [f"  by workload: {'; '.join(gains)}"] if gains else []
        said += words
    return "\n".join(said)


_EMPTY_LINES = re.compile(r"\n{3,}")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PROMPTS),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the text goes to a model, not to a browser
    )
    environment.filters.update(
        data=data,
        trimmed=trim,
        short=lambda name: name[:SHORT],
        named=lambda source: digest(source)[:SHORT],
        percent=percent,
        explained=explain_step,
        timing_table=timing_table,
        described=describe_tensor,
        lessons=lessons,
        readings=readings,
        device_lines=device_lines,
        roof_lines=roof_lines,
    )
    environment.globals |= {
        "difference": difference,
        "known": render_pages,
        "value_legend": value_legend,
        "float_inputs": float_inputs,
        "ledger_rows": ledger_rows,
    }
    return environment


_ENVIRONMENT = _environment()


def _variables(spec: Spec, device: DeviceFacts) -> dict[str, Any]:
    """What every prompt knows."""
    return {
        "spec": spec,
        "device": device,
        "language": "CUDA C++" if device.device == "cuda" else "C++",
        "prototypes": prototypes(spec, device.device),
        "workloads": spec.suite(device.device),  # never the held-out ones
        "headers": HEADERS,
        "build_flag": architecture_flag(device.architecture) if device.device == "cuda" else "",
        "margin": comparison.MARGIN[device.device],
        "confidence": comparison.CONFIDENCE,
        "agents": "four",
        "standing": None,
        "reference": "",
        "families": families_of(spec, ""),
    }


def render(name: str, spec: Spec, device: DeviceFacts, **facts: Any) -> tuple[Message, Message]:
    """The system and user messages of nodes/prompts/<name>.md. Raises jinja2.UndefinedError for a missing variable."""
    template = _ENVIRONMENT.get_template(f"{name}.md")
    variables = _variables(spec, device) | facts
    written = ("".join(template.blocks[block](template.new_context(variables))) for block in ("system", "user"))
    system, user = (_EMPTY_LINES.sub("\n\n", text).strip() for text in written)
    return Message(role="system", content=system), Message(role="user", content=user)


def knowledge(spec: Spec, device: DeviceFacts, families: Sequence[Family]) -> str:
    """What is known of kernels of these families on such a device, as the prompts say it."""
    return _parts(spec, device, "knowledge", families=families)


def describe_kernel(spec: Spec, device: DeviceFacts, reference: str = "") -> str:
    """The operation, the device, what a candidate is and what counts as faster, as the prompts say it. Without what is held out."""
    return _parts(spec, device, "operation", "suite", "contract", "acceptance", reference=reference[:REFERENCE_CHARS])


def _parts(spec: Spec, device: DeviceFacts, *names: str, **facts: Any) -> str:
    variables = _variables(spec, device) | facts
    said = [_ENVIRONMENT.get_template(f"{name}.md").render(variables) for name in names]
    return _EMPTY_LINES.sub("\n\n", "\n\n".join(said)).strip()
