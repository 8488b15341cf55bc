"""`run.py model`: what a model's step gains."""

from __future__ import annotations

import argparse

from graph.commands.opened import door
from graph.commands.options import Parser, common, number


def parser() -> argparse.ArgumentParser:
    from harness.model import Shape

    made = Parser(
        prog="run.py model", allow_abbrev=False,
        description="A decode and a prefill step of a transformer, with the baselines' kernels and with the best of these "
        "runs in their places: the gain that a model sees, and the share of the step that the kernels had.",
    )  # fmt: skip
    made.add_argument("runs", nargs="+", metavar="RUN", help="one of each kernel")
    sizes = {
        "layers": "layers", "hidden": "width of the residual stream", "ffn": "width of the MLP", "heads": "attention heads",
        "head_dim": "width of a head", "batch": "sequences of the decode step", "context": "tokens in each one's cache",
        "prefill": "new tokens of the prefill step, 0 for none",
    }  # fmt: skip
    for name, what in sizes.items():
        least = 0 if name == "prefill" else 2 if name == "context" else 1
        usual = Shape.model_fields[name].default
        made.add_argument(
            f"--{name.replace('_', '-')}", type=number(int, least), default=usual, metavar="N", help=f"{what} ({usual})"
        )
    made.add_argument("--dtype", default="", help="(the first that the kernels have)")
    made.add_argument("--samples", type=number(int, 8), default=30, metavar="N", help="pairs of each variant (30)")
    common(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import in_model
    from graph.runs import Run
    from harness.model import Shape
    from harness.report.words import model_step

    opened = door(asked)
    runs = [Run.find(asked.runs_dir, name) for name in asked.runs]
    shape = Shape(**{name: getattr(asked, name) for name in Shape.model_fields})
    gain = in_model.measure(
        [(run, opened.result(run)) for run in runs], shape, dtype=asked.dtype, samples=asked.samples
    )
    if asked.json:
        print(gain.model_dump_json(indent=1))
        return 0
    how = "captured" if gain.captured else "run eagerly"
    print(f"{', '.join(gain.kernels)} in {shape.layers} layers of {shape.hidden}, {gain.dtype}, {how}")
    for step in gain.steps:
        print(f"{step.name}: {step.comparison} {model_step(step)}")
    return 0
