"""The compiler's candidate for a kernel folder: from what its reference means, not from its source's text."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from harness.judge.tunables import tunables
from harness.once import Once
from harness.records import DeviceFacts
from harness.store import digest
from kernels.spec import Frozen, Spec

if TYPE_CHECKING:
    from compiler.compile import Meaning

STEP = "compile the reference"
"""The step of a plan that asks for it; further steps may be settings of its schedule."""
SETTING = re.compile(r"(?P<where>[a-z0-9_.]+\.[a-zA-Z0-9_.]+) = (?P<value>-?[0-9]{1,9}|true|false|null)")
"""Such a step: `float16.0.0.items = 4`."""
EXPECTED = (
    "the source anew, from what reference.py computes; steps after it may set fields of the schedule that stands at the head of such a "
    "source, by dtype, version and kernel: `float16.0.0.items = 4`"
)

ROOT = Path(__file__).resolve().parents[1]
MANY_CORES = 8
MOST_S = 300.0
"""A process of its own may take so long, and then this one does it."""

_waiting: list[subprocess.Popen[str]] = []
"""Processes that import what compiling needs, before anybody knows what is to be compiled."""
_found: Once[tuple[str, str]] = Once()
_meanings: Once[Meaning] = Once()


class Compilation(Frozen):
    """What the compiler is asked for: a kernel that computes on a device what a reference means."""

    spec: Spec
    reference: str
    device: DeviceFacts
    exact: bool = False
    """For a run whose candidates must be the baseline in every bit: no function is approximate."""

    def source(self) -> tuple[str, str]:
        """(source, ""), or ("", one sentence why there is none); worked out once in this process."""
        return _found.get(self._name(), self.work)

    def source_ahead(self) -> tuple[str, str]:
        """`source` from a thread, for whoever asks later.

        A process of its own does it, on another core, while torch is not imported here, since what both import takes seconds; and on a
        GPU's host, which has cores enough.
        """
        apart = "torch" not in sys.modules or (self.device.device == "cuda" and (os.cpu_count() or 1) >= MANY_CORES)
        return _found.get(self._name(), self._work_apart if apart else self.work)

    def first_schedule(self) -> dict[str, Any]:
        """The compiler's own. Raises ValueError with one sentence where the reference has none."""
        source, why = self.source()
        found = schedule_of(source) if source else None
        if found is None:
            raise ValueError(why or "the compiler gives no schedule for this kernel")
        return found

    def planned(self, steps: tuple[str, ...]) -> tuple[str, str]:
        """(source, "") of a plan with STEP, or ("", one sentence); its settings in their order."""
        settings = [SETTING.fullmatch(step.strip()) for step in steps if step != STEP]
        if not settings:
            return self.source()
        try:
            record = self.first_schedule()
            for setting in settings:
                if setting is None:
                    raise ValueError(
                        f"{STEP} goes with settings of its schedule alone, such as `float16.0.0.items = 4`"
                    )
                edit_schedule(record, setting["where"], json.loads(setting["value"]))
            return self.scheduled(record), ""
        except ValueError as why:
            return "", str(why)

    def scheduled(self, record: dict[str, Any] | str) -> str:
        """The source under a schedule, a record or its JSON. Raises ValueError with one sentence: what is no schedule or not legal."""
        from compiler.compile import Meaning
        from compiler.frontend import NoProgram
        from compiler.schedule import Schedule

        try:
            read = Schedule.model_validate_json(record) if isinstance(record, str) else Schedule.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the record'}: {first['msg']}") from None
        name = digest(self.spec.model_dump_json(), self.reference, str(self.exact))
        try:
            meaning = _meanings.get(name, lambda: Meaning(self.spec, self.reference, self.exact))
            return meaning.scheduled(read, self.device.architecture)
        except NoProgram as none:
            raise ValueError(str(none)) from None

    def _name(self) -> str:
        device = self.device
        return digest(self.spec.model_dump_json(), self.reference, device.device, device.architecture, str(self.exact))

    def _work_apart(self) -> tuple[str, str]:
        try:
            with _waiting.pop() if _waiting else _start() as process:
                try:
                    source, reason = json.loads(process.communicate(self.model_dump_json(), MOST_S)[0])
                finally:
                    process.kill()
        except (OSError, subprocess.TimeoutExpired, ValueError):
            return self.work()
        return source, reason

    def work(self) -> tuple[str, str]:
        """`source`, worked out here and now."""
        from compiler.compile import source  # imports torch
        from compiler.frontend import NoProgram

        try:
            return source(self.spec, self.reference, self.device.architecture, self.device.device, self.exact), ""
        except NoProgram as none:
            return "", str(none)
        except Exception as error:  # noqa: BLE001 -- a defect of the compiler must not end a run that rewrites can serve
            warnings.warn(f"the compiler failed on this reference: {error!r}", RuntimeWarning, stacklevel=2)
            return "", f"the compiler failed on this reference: {type(error).__name__}"


@contextmanager
def waiting_process() -> Iterator[None]:
    """Starts the process that will compile a reference: what it imports takes as long as what this one has to import before it asks."""
    if "torch" not in sys.modules:
        with contextlib.suppress(OSError):
            _waiting.append(_start())
    try:
        yield
    finally:
        while _waiting:
            with _waiting.pop() as process:
                process.kill()


def _start() -> subprocess.Popen[str]:
    # Without its garbage collector: it looks through what is imported, a sixth of the time, and the process ends with its answer.
    command = [sys.executable, "-c", "import gc; gc.disable(); from nodes import compiling; compiling.answer()"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        # Nothing is computed there: threads would only wait awake, beside what this process imports.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def answer() -> None:
    """What `Compilation.source_ahead` asks on standard input, answered on standard output."""
    import compiler.compile  # noqa: F401 -- before there is a question: it imports torch

    asked = sys.stdin.read()
    if not asked:  # whoever started this has ended
        return
    out, sys.stdout = sys.stdout, sys.stderr  # a reference may print
    json.dump(Compilation.model_validate_json(asked).work(), out)


def schedule_of(text: str) -> dict[str, Any] | None:
    """The schedule that `text` was compiled under, with the numbers that a search has chosen in it; None where nothing says."""
    from compiler.defaults import with_numbers
    from compiler.schedule import read_head

    found = read_head(text)
    return None if found is None else with_numbers(found, {t.name: t.value for t in tunables(text)}).model_dump()


def edit_schedule(record: dict[str, Any], where: str, value: int | bool | None) -> None:
    """Sets the field that `where` leads to: `float16.0.longest` of a version, `float16.0.1.items` of its second kernel, `numbers.STREAM`;
    a version itself that gets null goes. Raises ValueError with one sentence."""
    first, *steps = where.strip().split(".")
    if first == "numbers" and len(steps) == 1:
        record["numbers"] = record["numbers"] | {steps[0]: value}
        return
    versions = record["versions"].get(first)
    if versions is None:
        raise ValueError(f"{where}: there is no {first}; there are {', '.join([*record['versions'], 'numbers'])}")
    versions = record["versions"][first] = list(versions)
    number = int(steps[0]) if steps and steps[0].isdigit() else -1
    if not 0 <= number < len(versions):
        raise ValueError(f"{where}: {first} has versions 0 to {len(versions) - 1}")
    if len(steps) == 1 and value is None:
        del versions[number]
        return
    version = versions[number]
    kernels = version["kernels"] = list(version["kernels"])
    holder, name = version, steps[-1]
    if len(steps) == 3:
        kernel = int(steps[1]) if steps[1].isdigit() else -1
        if not 0 <= kernel < len(kernels):
            raise ValueError(f"{where}: version {number} has kernels 0 to {len(kernels) - 1}")
        holder = kernels[kernel] if name == "pdl" else kernels[kernel]["sketch"]
    if len(steps) not in (2, 3) or name not in holder or name in ("kernels", "sketch"):
        names = ", ".join(sorted(set(holder) - {"kernels", "sketch"}))
        raise ValueError(f"{where}: there is no such field; there are {names}")
    holder[name] = value
