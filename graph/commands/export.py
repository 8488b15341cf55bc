"""`run.py export`: a run's best as a package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from graph.commands.opened import door, found
from graph.commands.options import Command, Database, usage_error
from harness.options import Option


class ExportCommand(Database, Command):
    """A package that builds a run's best source and registers it as a torch operator."""

    run: Annotated[str, Option("RUN", positional=True)]
    to: Annotated[Path | None, Option("DIR")] = None
    """A new or empty folder (default: export in the run's own)."""
    samples: Path | None = None
    """Only this: every sample of the best file's timings, as CSV."""

    def go(self) -> int:
        from graph import outputs
        from harness import dropin
        from kernels import catalog

        run = found(self.runs_dir, self.run)
        result = door(self.runs_dir, self.checkpointer).result(run)
        if self.samples:
            outputs.write_samples(run, result, self.samples)
            print(self.samples)
            return 0
        if result.problem:
            return usage_error(
                f"{run.id} is about a PyTorch module, and its best stands alone: {outputs.best_file(run, result)}"
            )
        to = self.to or run.folder / "export"
        source = run.source(result.best)
        kernel = catalog.load(run.record.settings.kernel)
        evidence, baseline = result.model_dump(mode="json"), run.source(result.source)
        for path in dropin.export(kernel, source, evidence, to, result.device, baseline=baseline):
            print(path)
        if not result.improved:
            print("run.py: no improvement was found; this is the baseline as an operator", file=sys.stderr)
        return 0
