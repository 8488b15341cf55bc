"""Prompts from files: nodes/prompts/<role>.md, Jinja2 with two blocks, `system` and `user`; an undefined variable is
an error. The system half stays the same over a run, so that servers which cache prompt prefixes do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.records import DeviceFacts, Timing
from harness.store import digest
from kernels.spec import Device, Scalar, Size, Spec, Tensor
from nodes.lesson import Lesson
from nodes.policies.transcript import Message
from nodes.policies.trim import printable, trimmed
from nodes.rewrites import catalog

PROMPTS = Path(__file__).parent.parent / "prompts"
SHORT = 12
"""Hex digits of a source's hash that a prompt shows, and that an answer may name it by."""
SOURCE_CHARS = 60_000
DIFF_LINES = 60
LESSON_GAINS = 6

_C_TYPES: dict[Device, dict[str, str]] = {
    "cuda": {"float16": "__half", "bfloat16": "__nv_bfloat16", "float8_e4m3fn": "__nv_fp8_e4m3"},
    "cpu": {"float16": "_Float16", "bfloat16": "uint16_t", "float8_e4m3fn": "uint8_t"},
}
_COMMON_C_TYPES = {
    "float64": "double", "float32": "float", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
    "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
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


def data(text: str, name: str, language: str = "") -> str:
    """`text` between marks that it cannot contain: they carry the hash of the text itself."""
    text = printable(text)
    if len(text) > SOURCE_CHARS:
        text = text[:SOURCE_CHARS] + "\n[... cut: too long ...]"
    mark = digest(text)[:SHORT]
    return f"<data {mark}: {name}>\n{text.rstrip()}\n</data {mark}>"


def difference(old: str, new: str) -> str:
    """What another candidate has that the incumbent lacks, as a unified diff of at most DIFF_LINES lines."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "incumbent", "other", lineterm="", n=1))
    more = [f"({len(lines) - DIFF_LINES} more lines)"] if len(lines) > DIFF_LINES else []
    return "\n".join(lines[:DIFF_LINES] + more)


def timing_table(timings: Iterable[Timing]) -> str:
    """One line a timing: `label | cache | time us | light us | percent of light | x baseline [low, high] | says`."""
    rows = ["workload | cache | time_us | light_us | percent of light | x baseline [low, high] | comparison"]
    for timing in timings:
        light = "-" if timing.light_us is None else f"{timing.light_us:.2f}"
        share = "-" if timing.light_fraction is None else f"{100 * timing.light_fraction:.0f} %"
        speedup = timing.speedup
        rows.append(
            f"{timing.workload.label} | {timing.cache} | {timing.time_us:.2f} | {light} | {share} | "
            f"{speedup.median:.3f} [{speedup.low:.3f}, {speedup.high:.3f}] | {timing.comparison}"
        )
    return "\n".join(rows)


def explained(step: str) -> str:
    """A plan's step; where it is the name of a rewrite (the rules planned it), with what that rewrite should do."""
    rewrite = catalog().get(step)
    return f"{step}: {rewrite.EXPECTED}" if rewrite else step


def lessons(found: Iterable[Lesson]) -> str:
    """What earlier runs learned, one change a paragraph."""
    said = []
    for one in found:
        came = f"{one.gain:.3f}x the source of then" if one.gain else str(one.outcome)
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
        trimmed=trimmed,
        short=lambda name: name[:SHORT],
        percent=lambda share: f"{100 * share:.0f} %",
        explained=explained,
        timing_table=timing_table,
        lessons=lessons,
    )
    environment.globals["difference"] = difference
    return environment


_ENVIRONMENT = _environment()


def render(name: str, spec: Spec, device: DeviceFacts, **facts: Any) -> tuple[Message, Message]:
    """The system and user messages of nodes/prompts/<name>.md. Raises jinja2.UndefinedError for a missing variable."""
    template = _ENVIRONMENT.get_template(f"{name}.md")
    variables = {
        "spec": spec,
        "device": device,
        "language": "CUDA C++" if device.device == "cuda" else "C++",
        "prototypes": prototypes(spec, device.device),
        "workloads": spec.suite(device.device),  # never the held-out ones
        **facts,
    }
    written = ("".join(template.blocks[block](template.new_context(variables))) for block in ("system", "user"))
    system, user = (_EMPTY_LINES.sub("\n\n", text).strip() for text in written)
    return Message(role="system", content=system), Message(role="user", content=user)


def knowledge(spec: Spec, device: DeviceFacts) -> str:
    """What is known of such kernels on such a device, as the prompts say it."""
    said = _ENVIRONMENT.get_template("knowledge.md").render(spec=spec, device=device)
    return _EMPTY_LINES.sub("\n\n", said).strip()


def described(spec: Spec, device: DeviceFacts) -> str:
    """The operation, the device and what a candidate is, as the prompts say it. Without what is held out."""
    variables = {
        "spec": spec, "device": device, "language": "CUDA C++" if device.device == "cuda" else "C++",
        "prototypes": prototypes(spec, device.device), "workloads": spec.suite(device.device),
    }  # fmt: skip
    parts = [_ENVIRONMENT.get_template(f"{name}.md").render(variables) for name in ("operation", "contract")]
    return _EMPTY_LINES.sub("\n\n", "\n\n".join(parts)).strip()
