"""`run.py recheck`: an exported package judged again, after an update of driver, compiler or torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from graph.commands.options import EXIT_SAME, STARTED, AsJson, Command
from harness.options import Option
from nodes.options import RunOptions


class RecheckCommand(AsJson, Command):
    """Judge an exported package again on this machine, beside what was measured when it was exported. Exit code 0 where it
    PASSED, is not slower than it was and has all its files as they were exported, 3 where not."""

    package: Annotated[Path, Option("EXPORT", positional=True)]
    """The folder that `export` wrote."""
    options: Annotated[RunOptions, Option(only=("sandbox",))] = RunOptions()

    def go(self) -> int:
        from graph import one_file
        from graph.choices import baseline_source, read_source
        from graph.commands.evaluate import print_verdict
        from graph.live import Display, PlainDisplay
        from harness import device
        from harness.export import dropin
        from harness.store import digest
        from kernels import catalog

        found = dropin.read(self.package)
        on, _why = device.choose(str(found.evidence.get("device", "auto")))
        kernel, source = catalog.load(str(found.folder)), read_source(str(found.source), on)
        baseline = baseline_source(kernel, on, name=None, file=None)
        STARTED.set()
        silent = self.as_json and not sys.stderr.isatty()
        with Display() if silent else PlainDisplay(sys.stderr) as shown:
            said = one_file.evaluate(
                kernel,
                on,
                source,
                baseline,
                dtypes=tuple(found.evidence.get("dtypes") or ()),
                sandbox=self.options.sandbox,
                say=lambda text: shown.say("harness", text),
            )
        verdict = said.verdict
        changed = list(dropin.find_changes(self.package))
        if (
            digest(source) != found.evidence.get("best")
            and (own := found.source.relative_to(self.package).as_posix()) not in changed
        ):
            changed.append(own)
        before, now = _before(found.evidence), verdict.suite.speedup if verdict.suite else None
        held = not changed and verdict.passed and now is not None and (before is None or now.high >= before["low"])
        if self.as_json:
            record = {
                "holds": held,
                "changed": changed,
                "then": before,
                "verdict": verdict.model_dump(mode="json"),
            }
            print(json.dumps(record, indent=1))
        else:
            print_verdict(verdict, baseline[0], said.notices)
            if changed:
                print(f"the evidence is not of this package: {', '.join(changed)} changed since it was exported")
            if before is None:
                print("its evidence has no speedup to compare with")
            if before is not None:
                where = found.evidence.get("device_name") or found.evidence.get("device")
                print(
                    f"when it was exported: {before['median']:.2f}x ({before['low']:.2f} - {before['high']:.2f}) on {where}"
                )
        return 0 if held else EXIT_SAME


def _before(evidence: dict[str, Any]) -> dict[str, float] | None:
    """The speedup that was measured over the visible workloads: median, low, high."""
    interval = evidence.get("speedup")
    known = isinstance(interval, dict) and all(
        isinstance(interval.get(key), (int, float)) for key in ("median", "low", "high")
    )
    return interval if known else None
