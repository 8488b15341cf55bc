"""What the tests of rewrites share: facts, steps one after another, and the emulation's word on what came out.

Steps are named one by one, or several in one text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.records import DeviceFacts
from kernels.spec import Spec, Tensor, Workload
from nodes.policies.rules import apply_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.emulate.texts import Text, differences

ROOT = Path(__file__).resolve().parents[3]
INPUTS = ROOT / "tests/inputs"
H200 = DeviceFacts(
    device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20, bandwidth_gbps=4200
)
SPEC = Spec(
    name="anything",
    summary="any operation",
    axes=("n",),
    dtypes=("float32",),
    arguments=(Tensor(name="out", role="output", shape=("n",)),),
    workloads=(Workload(axes={"n": 1}, dtype="float32"),),
)
FACTS = Facts(spec=SPEC, device=H200)


def after(text: str, *steps: str, facts: Facts = FACTS) -> str:
    for step in " ".join(steps).split():
        changed = apply_step(step, text, facts)
        assert changed is not None, f"{step} does not apply"
        text = changed
    return text


def where_they_apply(text: str, *steps: str, facts: Facts = FACTS) -> str:
    for step in " ".join(steps).split():
        text = apply_step(step, text, facts) or text
    return text


def refused(text: str, step: str) -> bool:
    return apply_step(step, text, FACTS) is None


def stays(step: str, text: str, old: str, new: str, times: int = 1) -> bool:
    """Whether a step that applies to a text no longer does where `old` is `new`, so many times; -1 for everywhere."""
    assert old in text and not refused(text, step)
    return refused(text.replace(old, new, times), step)


def slow(*row: object) -> object:
    return pytest.param(*row, marks=pytest.mark.slow)


def same(cases: Mapping[str, tuple[str, str]], *flags: str) -> None:
    """What steps make of texts, where they apply, computes what the texts compute: in any order of threads, aligned and not.
    In place of steps there may be another text. All are CUDA with the entry that `emulate/texts.py` asks for."""
    pairs = []
    for text, steps in cases.values():
        program = Text("cuda", text, flags=flags)
        facts = Facts(spec=program.spec, device=H200)
        pairs.append((program, steps if "\n" in steps else where_they_apply(text, steps, facts=facts)))
    wrong = [
        f"{name}: {said}\n{new}" for name, said, (_, new) in zip(cases, differences(pairs), pairs, strict=True) if said
    ]
    assert not wrong, "\n".join([*(said.partition("\n")[0] for said in wrong), wrong[0]])


def flat(text: str) -> str:
    return " ".join(text.split())


def body(text: str, name: str) -> str:
    """A kernel's text in one line."""
    start = text.index(f"{name}(")
    return flat(text[start : text.index("\n}", start)])


def check(text: str, tmp_path: Path, folder: Path, *arguments: str, **environment: str) -> str:
    """Emulated, the text computes what the folder's reference says. Returns what it said on the way."""
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(text)
    ended = emulated(folder, candidate, *arguments, **environment)
    assert ended.stdout.strip() == "right", ended.stdout + ended.stderr
    return ended.stderr


def problem(tmp_path: Path, spec: str, reference: str, baseline: str) -> Path:
    """A folder like those of tests/inputs."""
    for name, text in (("spec.py", spec), ("reference.py", reference), ("baseline.cu", baseline)):
        (tmp_path / name).write_text(text)
    return tmp_path
