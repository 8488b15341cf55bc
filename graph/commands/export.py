"""`run.py export`: a run's best as a package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from graph.commands.opened import find_run, open_service
from graph.commands.options import Command, Database, usage_error
from harness.options import Option

if TYPE_CHECKING:
    from graph.runs import RunFolder
    from harness.report.result import Result


class ExportCommand(Database, Command):
    """A package that builds a run's best source and registers it as a torch operator."""

    run: Annotated[str, Option("RUN", positional=True)]
    """Its name, as `run.py runs` lists it."""
    to: Annotated[Path | None, Option("DIR")] = None
    """A new or empty folder (default: export in the run's own)."""
    form: Annotated[Literal["package", "diff", "pr"], Option(name="as")] = "package"
    """diff: what changes in the user's own file, in its form, for `git apply`; pr: Markdown for a pull request, the diff in it and
    a file that is a pytest and a benchmark, which --to writes beside it, too, with a profile of Nsight Compute's (.ncu-rep) where it is here."""
    of: Annotated[Path | None, Option("FILE")] = None
    """The user's file for --as diff or pr (default: the baseline in the kernel's folder, or the file given by
    --source)."""
    samples: Path | None = None
    """Write only every sample of the best file's timings, as CSV."""

    def go(self) -> int:
        from graph import outputs
        from harness.export import dropin
        from kernels import catalog

        run = find_run(self.runs_dir, self.run)
        result = open_service(self.runs_dir, self.checkpointer).result(run)
        if self.samples:
            outputs.write_samples(run, result, self.samples)
            print(self.samples)
            return 0
        if result.problem:
            return usage_error(
                f"{run.id} is about a PyTorch module, and its best stands alone: {outputs.best_file(run, result)}"
            )
        if self.form != "package":
            return self._changes(run, result)
        to = self.to or run.folder / "export"
        source = run.source(result.best)
        kernel = catalog.load(run.record.settings.kernel).of_dtypes(result.dtypes)
        evidence, baseline = result.model_dump(mode="json"), run.source(result.source)
        for path in dropin.export(kernel, source, evidence, to, result.device, baseline=baseline):
            print(path)
        if not result.improved:
            print("run.py: no improvement was found; this is the baseline as an operator", file=sys.stderr)
        return 0

    def _changes(self, run: RunFolder, result: Result) -> int:
        """The diff, or the pull request's text, on standard output or into --to, a file."""
        from graph.outputs import changes, profile, read
        from harness.export import review
        from harness.export.dropin import ExportError
        from harness.report.pull_request import markdown
        from harness.store import write_together
        from kernels import catalog

        if self.form == "pr" and not result.improved:
            print("run.py: no improvement was found, so there is nothing to propose", file=sys.stderr)
            return 0
        diff, built = changes(run, result, self.of)
        text, test, missing, profiled = diff, "", "", b""
        if self.form == "pr":
            kernel = catalog.load(run.record.settings.kernel).of_dtypes(result.dtypes)
            try:
                test = review.write(kernel, result.device)
            except ExportError as error:
                missing = f"no test and no benchmark were written: {error}"
            if (written := read(run)) is not None:  # by `run.py model`
                result = result.model_copy(update={"model": written.model})
            profiled, said = profile(run, result) if self.to else (b"", "")
            text = markdown(result, diff, built, test, missing, said)
        if self.to:
            files = {self.to.name: text.encode(), f"test_{result.kernel}.py": test.encode()}
            files[f"{result.kernel}.ncu-rep"] = profiled
            made = {self.to.with_name(name): content for name, content in files.items() if content}
            write_together(made)
            print("\n".join(map(str, made)))
        else:
            print(text, end="")
        print(f"run.py: {built}", file=sys.stderr)
        if not result.improved:
            print("run.py: no improvement was found, so nothing changes", file=sys.stderr)
        return 0
