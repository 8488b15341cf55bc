"""The sources that the rules are judged on: every baseline of the catalog and of tests/inputs, and the drafts of the starter suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compiler import draft
from harness.backends import model_new
from harness.problems import pytorch
from harness.records import DeviceFacts
from harness.store import digest
from kernels import catalog
from kernels.spec import Spec
from nodes.roles import Finding, PlannerRequest

ROOT = Path(__file__).resolve().parent.parent
STARTER = ROOT / "kernels" / "suites" / "starter"
SUFFIX = {"cuda": ".cu", "cpu": ".cpp"}
FACTS = {
    "cuda": DeviceFacts(device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20),
    "cpu": DeviceFacts(device="cpu", name="Xeon", architecture="avx512", units=8, last_level_cache_bytes=32 << 20),
}
NOTHING = Finding(bound="unknown", summary="nothing was measured")


@dataclass(frozen=True)
class Input:
    """One text and what it computes. `label` is its path, or the problem's for a draft."""

    label: str
    spec: Spec
    device: DeviceFacts
    text: str

    def request(self, width: int = 1) -> PlannerRequest:
        """What the planner is asked in the first round, of as many plans."""
        name = digest(self.text)
        return PlannerRequest(
            spec=self.spec, device=self.device, finding=NOTHING, incumbent=name, source=self.text, attempts=(),
            sources={name: self.text}, width=width,
        )  # fmt: skip


def inputs(drafts: Path | None = None) -> Iterator[Input]:
    """All of them; drafts only where a folder to keep them in is named: they take seconds each to make."""
    folders = sorted(path.parent for path in (ROOT / "tests" / "inputs").glob("*/spec.py"))
    for kernel in [catalog.load(name) for name in (*catalog.names(), *map(str, folders))]:
        for on, suffix in SUFFIX.items():
            for path in kernel.baselines(on).values():
                if path.suffix == suffix:
                    yield Input(str(path.relative_to(ROOT)), kernel.spec, FACTS[on], path.read_text())
    if drafts is not None:
        yield from _drafted(drafts)


def _drafted(folder: Path) -> Iterator[Input]:
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(STARTER.glob("level*/*.py")):
        kept = folder / f"{path.parent.name}.{path.stem}.json"
        if not kept.exists():
            kept.write_text(json.dumps(_drafts(path)))
        made = json.loads(kept.read_text())
        for on, text in made["sources"].items():
            label = f"{path.relative_to(ROOT)}, drafted for {on}"
            yield Input(label, Spec.model_validate(made["spec"]), FACTS[on], text)


def _drafts(path: Path) -> dict:
    """The spec, as that of a kernel, and the native source of the drafter's module for each device that has one."""
    problem = pytorch.open_problem(path, "cpu")  # what it takes and returns is the same on a GPU
    spec = problem.spec.model_copy(update={"problem": False}).model_dump(mode="json")
    problem.close()
    sources = {}
    for on in SUFFIX:
        try:
            text = model_new.native_source(draft.answer(path.read_text(), on)["source"], on)
        except draft.NoDraft:
            continue
        if text:
            sources[on] = text
            continue
    return {"spec": spec, "sources": sources}
