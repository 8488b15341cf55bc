"""`run.py recheck`: an exported package judged again, after an update of driver, compiler or torch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from graph.commands.options import EXIT_SAME, Parser


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py recheck", allow_abbrev=False,
        description="Judge an exported package again on this machine, beside what was measured when it was exported. Exit "
        "code 0 where it PASSED and is not slower than it was, 3 where not.",
    )  # fmt: skip
    made.add_argument("package", metavar="EXPORT", type=Path, help="the folder that `export` wrote")
    made.add_argument(
        "--sandbox", choices=("auto", "require"), default="auto", help="require: refuse where a layer is missing"
    )
    made.add_argument("--json", action="store_true", help="as JSON on standard output, nothing else there")
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import one_file
    from graph.choices import baseline_source, read_source
    from graph.commands.evaluate import print_verdict
    from graph.live import Display, PlainDisplay
    from harness import device, dropin
    from harness.store import digest
    from kernels import catalog

    found = dropin.read(asked.package)
    on, _why = device.choose(str(found.evidence.get("device", "auto")))
    kernel, source = catalog.load(str(found.folder)), read_source(str(found.source), on)
    baseline = baseline_source(kernel, on, name=None, file=None)
    asked.starting.cancel()
    silent = asked.json and not sys.stderr.isatty()
    with Display() if silent else PlainDisplay(sys.stderr) as shown:
        said = one_file.evaluate(
            kernel, on, source, baseline, dtypes=(), sandbox=asked.sandbox, say=lambda text: shown.say("harness", text)
        )
    verdict = said.verdict
    changed = digest(source) != found.evidence.get("best")
    before, now = _before(found.evidence), verdict.suite.speedup if verdict.suite else None
    held = verdict.passed and now is not None and (before is None or now.high >= before["low"])
    if asked.json:
        record = {"holds": held, "source_changed": changed, "then": before, "verdict": verdict.model_dump(mode="json")}
        print(json.dumps(record, indent=1))
    else:
        print_verdict(verdict, baseline[0], said.notices)
        if changed:
            print("warning: the source in this package is not the one that the evidence is of")
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
        isinstance(interval.get(key), float) for key in ("median", "low", "high")
    )
    return interval if known else None
