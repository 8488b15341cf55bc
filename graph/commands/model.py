"""`run.py model`: what a model's step gains."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from graph.commands.opened import open_service
from graph.commands.options import Command, OfRuns
from harness.judge.in_model import Shape
from harness.options import Option


class ModelCommand(OfRuns, Command):
    """A decode and a prefill step of a transformer, with the baselines' kernels and with the best of these runs in their
    places: the gain that a model sees, and the share of the step that the kernels had."""

    runs: Annotated[tuple[str, ...], Option("RUN", positional=True)]
    """One of each kernel."""
    shape: Shape = Shape()
    dtype: Annotated[str, Option(usual="the first that the kernels have")] = ""
    samples: int = Field(default=30, ge=8)
    """Pairs of each variant."""

    def go(self) -> int:
        from graph import in_model
        from graph.runs import RunFolder
        from harness.report.words import model_step

        opened = open_service(self.runs_dir, self.checkpointer)
        runs = [RunFolder.find(self.runs_dir, name) for name in self.runs]
        gain = in_model.measure(
            [(run, opened.result(run)) for run in runs], self.shape, dtype=self.dtype, samples=self.samples
        )
        if self.as_json:
            print(gain.model_dump_json(indent=1))
            return 0
        how = "captured" if gain.captured else "run eagerly"
        print(f"{', '.join(gain.kernels)} in {self.shape.layers} layers of {self.shape.hidden}, {gain.dtype}, {how}")
        for step in gain.steps:
            print(f"{step.name}: {step.comparison} {model_step(step)}")
        return 0
