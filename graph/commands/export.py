"""`run.py export`: a run's best as a package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graph.commands.opened import door, found
from graph.commands.options import Parser, common, usage_error


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py export", allow_abbrev=False,
        description="A package that builds a run's best source and registers it as a torch operator.",
    )  # fmt: skip
    made.add_argument("run", metavar="RUN")
    made.add_argument("--to", type=Path, metavar="DIR", help="a new or empty folder (default: export in the run's own)")
    made.add_argument(
        "--samples", type=Path, metavar="FILE", help="only this: every sample of the best file's timings, as CSV"
    )
    common(made, json_too=False)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import outputs
    from harness import dropin
    from kernels import catalog

    run = found(asked)
    result = door(asked).result(run)
    if asked.samples:
        outputs.write_samples(run, result, asked.samples)
        print(asked.samples)
        return 0
    if result.problem:
        return usage_error(
            f"{run.id} is about a PyTorch module, and its best stands alone: {outputs.best_file(run, result)}"
        )
    to = asked.to or run.folder / "export"
    source = run.source(result.best)
    kernel = catalog.load(run.record.settings.kernel)
    evidence, baseline = result.model_dump(mode="json"), run.source(result.source)
    for path in dropin.export(kernel, source, evidence, to, result.device, baseline=baseline):
        print(path)
    if not result.improved:
        print("run.py: no improvement was found; this is the baseline as an operator", file=sys.stderr)
    return 0
