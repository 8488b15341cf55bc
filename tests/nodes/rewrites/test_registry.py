"""How rewrites are found and ordered, and that those that normalise have done so after one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import kernels.catalog
from harness.records import DeviceFacts
from kernels.spec import Spec
from nodes.policies.search import apply_step
from nodes.rewrites import Facts, catalog, ordered, registry
from nodes.rewrites.syntax.source import Source

FACTS = {
    ".cu": DeviceFacts(device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20),
    ".cpp": DeviceFacts(device="cpu", name="Xeon", architecture="avx512", units=8, last_level_cache_bytes=32 << 20),
}


@dataclass(frozen=True)
class Input:
    """A text of the catalog or of tests/inputs and what it computes."""

    label: str
    spec: Spec
    device: DeviceFacts
    text: str


def inputs() -> Iterator[Input]:
    root = Path(__file__).resolve().parents[3]
    folders = sorted(path.parent for path in (root / "tests" / "inputs").glob("*/spec.py"))
    for name in (*kernels.catalog.names(), *map(str, folders)):
        kernel = kernels.catalog.load(name)
        for suffix, facts in FACTS.items():
            for path in kernel.baselines(facts.device).values():
                if path.suffix == suffix:
                    yield Input(str(path.relative_to(root)), kernel.spec, facts, path.read_text())


INPUTS = list(inputs())
QUICK = {"scaled_rms_norm", "masked_softmax", "rotary_query_key", "cpu_softmax", "relabel"}


def test_a_file_is_a_rewrite_and_its_folder_the_phase() -> None:
    folder = Path(registry.__file__).parent
    for name, rewrite in catalog().items():
        text = (folder / rewrite.phase / f"{name}.py").read_text()
        assert text.count("@rule(") == 1 and rewrite.languages


def test_each_comes_after_what_it_goes_on_from() -> None:
    for language in ("cuda", "cpu"):
        names = [rewrite.name for rewrite in ordered(language)]
        assert len(set(names)) == len(names)
        for rewrite in ordered(language):
            assert all(names.index(other) < names.index(rewrite.name) for other in rewrite.after if other in names)


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=() if Path(one.label).parent.name in QUICK else pytest.mark.slow) for one in INPUTS],
    ids=lambda one: one.label,
)
def test_one_pass_of_forms_is_all_there_is(one: Input) -> None:
    """Plans have them once, in their order: nothing is left for a second time. Nor does any step behind them apply twice, and what
    it writes is C++."""
    facts, text = Facts(spec=one.spec, device=one.device), one.text
    forms = [rewrite.name for rewrite in ordered(one.device.device) if rewrite.normalizes]
    for form in forms:
        text = apply_step(form, text, facts) or text
    assert [form for form in forms if apply_step(form, text, facts) is not None] == []
    for step in (rewrite.name for rewrite in ordered(one.device.device)):
        new = apply_step(step, text, facts)
        assert new is None or not Source(new, one.device.device).root.has_error, step
        assert new is None or apply_step(step, new, facts) is None, f"{step} applies twice"
