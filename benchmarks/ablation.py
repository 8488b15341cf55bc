"""What each rewrite is for: on which inputs it applies, and what the first plan loses without it.

    python -m benchmarks.ablation [--drafts FOLDER] [--only WORD] [--rewrite NAME ...] [--json FILE]
    python -m benchmarks.ablation --texts FILE     for `benchmarks.text_times`, which times them on a GPU

Inputs are all baselines of the catalog and of tests/inputs, and with --drafts the starter suite's drafts, kept in that folder.
Nothing runs: a rewrite `applies` where it changes the source, the first plan's text, or the text at its place in the plan;
it is `planned` where the first plan keeps it; the plan is `different` where it comes out as another text without it, and
`worse` where that text promises less. With --texts nothing is counted: the first plan's text of each CUDA baseline is written, whole and
without each of its rewrites.
"""

from __future__ import annotations

import argparse
import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rewrite_inputs import Input, inputs
from nodes.policies.rules import _Search, applied_step
from nodes.rewrites import Facts, catalog


@dataclass
class Worth:
    """Of one rewrite: the labels of the inputs that each word of the table counts."""

    lines: int
    applies: list[str] = field(default_factory=list)
    planned: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)


class Planned:
    """The first plan of an input, less or more one rewrite."""

    def __init__(self, one: Input) -> None:
        self.one, self.search = one, _Search(one.request())
        self.facts = Facts(spec=one.spec, device=one.device)
        self.bundle = self.search._bundle()
        self.text, self.applied = self.after(self.bundle)
        self.gain = self.promised(self.applied)

    def after(self, steps: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        return self.search._after(self.search.root, steps)

    def promised(self, steps: tuple[str, ...]) -> float:
        return sum(self.search.gains[step] for step in steps)

    def forms(self, name: str) -> list[str]:
        return [step for step in self.search.steps if step.partition(":")[0] == name]

    def applies(self, name: str) -> bool:
        """Anywhere: to the source, to the plan's text, or at its place in the plan, in any of its forms."""
        if any(step in self.applied for step in self.forms(name)):
            return True
        for step in self.forms(name):
            if any(applied_step(step, text, self.facts) is not None for text in (self.one.text, self.text)):
                return True
            others = [s for s in self.bundle if s.partition(":")[0] != name]
            if step in self.after(self.search._ordered([*others, step]))[1]:
                return True
        return False

    def without(self, name: str) -> tuple[str, tuple[str, ...]]:
        return self.after(tuple(step for step in self.bundle if step.partition(":")[0] != name))


def judge(planned: Planned, found: dict[str, Worth]) -> None:
    label = planned.one.label
    for name in planned.search.names:
        if name not in found or not planned.applies(name):
            continue
        worth = found[name]
        worth.applies.append(label)
        if not any(step in planned.applied for step in planned.forms(name)):
            continue
        worth.planned.append(label)
        text, applied = planned.without(name)
        if text != planned.text:
            worth.different.append(label)
            if planned.promised(applied) < planned.gain - 1e-3:  # what only brings into form promises a ten-thousandth
                worth.worse.append(label)


def texts(wanted: argparse.Namespace) -> dict[str, dict[str, str]]:
    """{label: {"first": the first plan's text, "without NAME": ...}}, each text once."""
    said: dict[str, dict[str, str]] = {}
    for one in inputs():
        if one.device.device != "cuda" or wanted.only not in one.label:
            continue
        planned = Planned(one)
        said[one.label] = {"first": planned.text}
        for name in dict.fromkeys(step.partition(":")[0] for step in planned.applied):
            text, _ = planned.without(name)
            if text not in said[one.label].values():
                said[one.label][f"without {name}"] = text
        print(one.label, len(said[one.label]), flush=True)
    return said


def table(found: dict[str, Worth]) -> Table:
    shown = Table(title="rewrites, by how many inputs they serve")
    for column in ("rewrite", "lines", "applies", "planned", "different", "worse", "for instance"):
        shown.add_column(column, justify="left" if column in {"rewrite", "for instance"} else "right")
    for name, worth in sorted(found.items(), key=lambda item: (len(item[1].applies), len(item[1].worse), item[0])):
        counts = (len(labels) for labels in (worth.applies, worth.planned, worth.different, worth.worse))
        instance = next(iter(worth.worse or worth.different or worth.planned or worth.applies), "")
        shown.add_row(name, str(worth.lines), *map(str, counts), instance)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", type=Path, help="the drafts of the starter suite too, kept in this folder")
    parser.add_argument("--only", default="", help="inputs whose label holds this")
    parser.add_argument("--rewrite", action="append", choices=sorted(catalog()), help="all where left out")
    parser.add_argument("--json", type=Path, help="write the labels as well")
    parser.add_argument(
        "--texts", type=Path, help="write the texts of the first plans with and without each of their rewrites"
    )
    wanted = parser.parse_args()
    if wanted.texts:
        wanted.texts.write_text(json.dumps(texts(wanted)))
        return
    lines = {
        name: len(inspect.getsource(inspect.getmodule(rewrite.apply)).splitlines())
        for name, rewrite in catalog().items()
    }
    found = {name: Worth(lines[name]) for name in wanted.rewrite or catalog()}
    for one in inputs(wanted.drafts):
        if wanted.only in one.label:
            judge(Planned(one), found)
            print(one.label, flush=True)
    Console(width=140).print(table(found))
    if wanted.json:
        wanted.json.write_text(json.dumps({name: vars(worth) for name, worth in found.items()}, indent=1))


if __name__ == "__main__":
    main()
