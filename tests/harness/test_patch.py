"""A winner goes back into the user's own file as a diff, in the file's form."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.backends import stable_abi
from harness.evaluate import Evaluator
from harness.export import patch
from harness.export.dropin import ExportError
from harness.report.pull_request import markdown
from harness.store import Store
from kernels import catalog
from tests.harness.report.example import RESULT
from tests.harness.test_backends_forms import STABLE, TVM_FFI

KERNEL = catalog.load("silu_and_mul")
SPEC = KERNEL.spec
PLAIN = KERNEL.baseline("cpu")[1].read_text()


def applied(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """What `git apply` makes of the diff."""
    for name, text in before.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        input=patch.diff(before, after),
        text=True,
        cwd=tmp_path,
        check=True,
    )
    return {name: (tmp_path / name).read_text() for name in after}


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_winner_in_the_files_own_form_replaces_its_text(tmp_path: Path, end: str) -> None:
    own = "// a\n// b\nint f();" + end
    after = patch.patch_files(SPEC, own, own, own.replace("b", "c"), "csrc/k.cu", "cuda")
    assert applied(tmp_path, {"csrc/k.cu": own}, after) == {"csrc/k.cu": own.replace("b", "c")}


@pytest.mark.parametrize(("own", "name"), [(STABLE, "act.cpp"), (TVM_FFI, "act.cuh")])
def test_a_plain_winner_is_called_from_the_host_function_and_nothing_else_changes(
    tmp_path: Path, own: str, name: str
) -> None:
    build = SPEC.build.model_validate({"binding": {"float32": "SiluAndMul<float>::run"}} if own is TVM_FFI else {})
    after = patch.patch_files(SPEC.model_copy(update={"build": build}), own, own, PLAIN, name, "cpu")
    assert set(after) == {name, "act.astrolabe.h"}
    assert applied(tmp_path, {name: own}, after) == after
    removed = [
        row for row in patch.diff({name: own}, after).splitlines() if row.startswith("-") and not row.startswith("---")
    ]
    assert not removed


@pytest.mark.parametrize(
    ("own", "winner", "said"),
    [
        (STABLE, None, "is not the text that the winner was measured against"),
        ("import torch\n", PLAIN, "in the form python and the winner in plain"),
        (STABLE.replace("void silu_and_mul", "int silu_and_mul"), PLAIN, "returns what it computes"),
        (STABLE.replace("silu_and_mul", "other"), PLAIN, "0 functions silu_and_mul take tensors"),
        (STABLE.replace("Tensor& out,", "Tensor& a, int64_t b, int64_t c, int64_t d, Tensor& out,").replace(" input)", " x)"), PLAIN, "not the spec's arguments"),
    ],
)  # fmt: skip
def test_what_cannot_be_patched_is_said(own: str, winner: str | None, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        patch.patch_files(SPEC, own, own if winner else f"{own} ", winner or PLAIN, "f.cpp", "cpu")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_patched_file_builds_in_its_form_and_calls_the_winner(tmp_path: Path) -> None:
    if reason := stable_abi.why_unavailable():
        pytest.skip(reason)
    spec = SPEC.model_copy(
        update={"workloads": tuple(w for w in SPEC.suite("cpu") if w.dtype == "float32")[:2], "dtypes": ("float32",)}
    )
    broken = STABLE.replace("-gate", "-up")  # only the winner is right
    after = patch.patch_files(spec, broken, broken, PLAIN, "act.cpp", "cpu")
    folder = tmp_path / "silu_and_mul"
    folder.mkdir()
    (folder / "act.astrolabe.h").write_text(after["act.astrolabe.h"])
    (folder / "reference.py").write_text((KERNEL.folder / "reference.py").read_text())
    with Evaluator(replace(KERNEL, spec=spec, folder=folder), "cpu", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(after["act.cpp"]))
        assert build.ok, build.log
        from harness.judge.verification import check_once

        assert not any(check_once(evaluator, build, workload) for workload in spec.workloads)


def test_a_pull_requests_text_has_every_size_and_the_loss() -> None:
    text = markdown(RESULT, "diff --git a/k b/k\n", "k was compiled")
    assert text.count("\n| ") == 1 + len(RESULT.workloads) and "worst" in text and "```diff" in text
    assert all(row.label in text for row in RESULT.workloads)
