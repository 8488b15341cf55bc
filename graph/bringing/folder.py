"""A kernel's folder from an engine's own test, or from a function and example arguments: `run.py bring`."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from graph.bringing.binding import Binding
from graph.bringing.names import any_number_of, bare_name
from graph.bringing.reference import Reference
from graph.bringing.trial import ROUNDS, find_fixed_axes, find_wrong_calls, rounds_between
from graph.watched_calls import watch_function, watch_test
from harness.backends import is_python, python_module
from harness.capture.extents import axis_name
from harness.capture.signature import CFunction, binds_itself, find_headers, list_exports, read_function
from harness.capture.source import CaptureError
from harness.store import write_folder
from kernels.catalog import KernelError

EACH = 8
"""Workloads that are timed, that are checked only, that are held out."""


def bring(
    target: str, source: Path, symbol: str, to: Path, *, arguments: str = "", function: str = "", include: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (), sources: tuple[Path, ...] = (),
) -> Iterator[str]:  # fmt: skip
    """Write the folder; sentences on what was not found out. Raises KernelError where nothing can be written."""
    if to.exists() and any(to.iterdir()):
        raise KernelError(f"{to} is not empty; name another folder")
    text = source.read_text(encoding="utf-8", errors="replace")
    if is_python(text) and python_module.uses_cute_dsl(text):
        raise KernelError(
            f"{source}: it is written in CuTe DSL, whose host function takes cute.Tensor: write the folder by hand, with a @cute.jit function of the spec's "
            "arguments around its kernel (docs/kernels.md)"
        )
    if is_python(text) and (star := any_number_of(text, symbol)):
        raise KernelError(
            f"{source}: {symbol} takes {star}, and nothing says what each is: name by --symbol a function or class whose parameters have names, or write one around it"
        )
    try:
        beside = () if is_python(text) else find_headers(source, include, sources).files.values()
        headers = [one.read_text(errors="replace") for one in beside]
        exports = {} if is_python(text) else list_exports(text)
        if symbol in exports:
            function, symbol = function or symbol, exports[symbol]
        taken = None if is_python(text) else read_function(text, symbol, headers)
        if "::test" in target or re.search(r"\.py(::|$)", target):
            calls, reference, more = watch_test(
                target, function or bare_name(symbol), source if taken is None else None, is_named=bool(function)
            )
        else:
            calls, reference, more = watch_function(target, arguments, _find_written(taken))
    except CaptureError as error:
        raise KernelError(f"{source if 'function' in str(error) else target}: {error}") from None
    yield from more
    forms = Counter((not call.fault, len(call.read), repr(call.form())) for call in calls)
    # Steps that read more of the inputs first: by an identity's test a gather never reads its indices. A few calls whose steps
    # could be written down are no kernel's where those of most could not: a transform of one element is a copy.
    common = max(
        forms, key=lambda form: (form[1] + 1 if form[0] and forms[form] >= len(calls) / FEW else 0, forms[form])
    )
    kept = [call for call in calls if (not call.fault, len(call.read), repr(call.form())) == common]
    if len(kept) < len(calls):
        yield f"{len(calls) - len(kept)} of {len(calls)} calls are left out: their arguments, or the steps of what is expected, differ from the others'"
    if taken is not None and taken.is_overloaded:
        given = [value for value in kept[0].numbers.values() if value is not None]
        taken = read_function(text, symbol, headers, len(kept[0].tensors) + len(given))
    if taken is not None and taken.namespace and not binds_itself(text) and not taken.has_c_linkage:
        outer = taken.namespace.split("::")
        if symbol.split("::")[0] not in outer:
            symbol = f"{taken.namespace}::{symbol}"
    with tempfile.TemporaryDirectory(prefix="astrolabe-bring-") as held:
        last: Folder | None = None
        fixed: frozenset[str] = frozenset()
        for attempt in range(MOST_ATTEMPTS):
            at = Path(held) / str(attempt)
            last = Folder(source, text, symbol, taken, kept, reference, at, include, flags, sources, fixed)
            doubts = list(last.write())
            wrong = {} if kept[0].fault else find_wrong_calls(last, last.axes)
            if wrong and len(wrong) < len(kept):
                yield f"{len(wrong)} calls are left out: reference.py would not make what the test expects of them ({wrong[min(wrong)]})"
                kept = [call for number, call in enumerate(kept) if number not in wrong]
            elif wrong:
                last.refuse(f"reference.py does not make what the test expects ({wrong[0]})")
                break
            elif not kept[0].fault and (more_fixed := frozenset(find_fixed_axes(last, last.axes))):
                fixed |= more_fixed
            else:
                break
        assert last is not None
        yield from doubts
        if not wrong and not kept[0].fault and rounds_between(last, last.axes):
            yield ROUNDS
        with write_folder(to) as made:
            shutil.copytree(last.to, made, dirs_exist_ok=True, symlinks=True)


def _find_written(taken: CFunction | None) -> list[str]:
    """Parameters in which the function may leave something, where it returns nothing; else those that it returns, where it returns nothing else."""
    if taken is None:
        return []
    tensors = {one.name: one for one in taken.parameters if one.is_tensor and not one.is_stream}
    if taken.returns == "void":
        return [axis_name(name) for name, one in tensors.items() if not one.is_read_only]
    returned = [one.name for one in taken.made]
    return [axis_name(name) for name in returned] if tensors.keys() >= {*returned} else []


FEW = 8
"""One call in so many is too few to stand for the others."""
MOST_ATTEMPTS = 4
"""Of writing the folder: calls that the reference does not fit are left out, sizes at which it alone works are fixed."""


class Folder(Binding, Reference):
    """What becomes of calls of a kernel: its folder."""

    def write(self) -> Iterator[str]:
        """All of the folder. Sentences on what was not found out."""
        self.to.mkdir(parents=True, exist_ok=True)
        on_cpu = self.source.suffix in (".cpp", ".cc", ".c") and not any(one.suffix == ".cu" for one in self.sources)
        suffix = ".py" if self.taken is None else ".cpp" if on_cpu else ".cu"
        shutil.copyfile(self.source, self.to / f"baseline{suffix}")
        arguments, names = self._arguments()
        build = self._build(suffix)
        self._reference(names)
        axes = self.extents.axes or {"one": (1,) * len(self.calls)}
        self.axes = axes
        name = axis_name(bare_name(self.symbol))
        exported = {function: name for name, function in list_exports(self.text).items()}
        own = bare_name(self.symbol) if self.taken is None else exported.get(self.taken.name, self.taken.name)
        entry = name if self.taken is not None and self.binding else own
        lines = [
            "from kernels.spec import Scalar, Size, Spec, Tensor, Workload", "", "SPEC = Spec(", f"    name={name!r},",
            f"    summary={f'{self.symbol} of {self.source.name}'!r},", *([f"    entry={entry!r},"] if entry != name else []),
            f"    axes={tuple(axes)!r},", f"    dtypes={self.dtypes!r},", "    arguments=(",
            *(f"        {one}," for one in arguments), "    ),", *([f"    build={build!r},"] if build else []), "    workloads=(",
            *(f"        {one}," for one in self._workloads(axes, suffix)), "    ),", ")", "",
        ]  # fmt: skip
        (self.to / "spec.py").write_text("\n".join(lines))
        yield from dict.fromkeys(self.doubts)

    def refuse(self, why: str) -> None:
        """Of a reference that would say something else than the test."""
        (self.to / "reference.py").write_text(f"def reference(**_given):\n    raise NotImplementedError({why!r})\n")

    def _workloads(self, axes: dict[str, tuple[int, ...]], suffix: str) -> list[str]:
        found: dict[str, int] = {}
        anywhere = suffix == ".py" and "triton" not in self.text
        device = "" if anywhere else f", devices=({'cpu' if suffix == '.cpp' else 'cuda'!r},)"
        rows = []
        for at, call in enumerate(self.calls):
            sizes = {name: values[at] for name, values in axes.items()}
            key = f"axes={sizes!r}, dtype={self.series[at]!r}"
            elements = sum(tensor.numel() for tensor in call.tensors.values())
            if key not in found:
                found[key] = elements
                rows.append((elements, key))
        rows.sort(key=lambda one: one[0])
        if len(rows) > 3 * EACH:
            taken = [rows[at * len(rows) // (3 * EACH)] for at in range(3 * EACH)]
            seen = {dtype for dtype in self.dtypes if any(f"dtype={dtype!r}" in key for _, key in taken)}
            left = [
                next(row for row in rows if f"dtype={dtype!r}" in row[1]) for dtype in self.dtypes if dtype not in seen
            ]
            rows = sorted([*taken, *left], key=lambda one: one[0])
        lines = []
        for at, (_elements, key) in enumerate(rows):
            last = at == len(rows) - 1
            held_out = at % 3 == 1 and len(rows) > 2 and not last
            timed = held_out or at % 3 == 2 or len(rows) < 3 or at == 0 or last
            lines.append(
                f"Workload({key}{device}{', held_out=True' if held_out else '' if timed else ', timed=False'})"
            )
        if max(row[0] for row in rows) < 1 << 22:
            self.doubts.append(
                "the largest call is small (under 4 million elements): add the sizes that you really run to workloads"
            )
        return lines
