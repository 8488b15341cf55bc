"""`run.py recheck`: a package that was exported is judged again by what travels with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from graph.commands.recheck import RecheckCommand
from harness.export import dropin
from harness.export.dropin import ExportError
from harness.store import digest
from kernels import catalog
from tests.test_run import BASELINE, FASTER, REFERENCE, SPEC


def package(tmp_path: Path, speedup: float) -> Path:
    folder = tmp_path / "twice"
    folder.mkdir()
    for name, text in (("spec.py", SPEC), ("reference.py", REFERENCE), ("baseline.cpp", BASELINE)):
        (folder / name).write_text(text)
    measured = {"median": speedup, "low": speedup * 0.99, "high": speedup * 1.01}
    evidence = {"device": "cpu", "best": digest(FASTER), "speedup": measured}
    to = tmp_path / "package"
    dropin.export(catalog.load(str(folder)), FASTER, evidence, to, "cpu", baseline=BASELINE)
    shutil.rmtree(folder)
    return to


def rechecked(to: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    code = RecheckCommand(package=to, as_json=True).go()
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_package_that_is_slower_than_it_was_or_was_changed_is_said(tmp_path: Path, capsys) -> None:
    to = package(tmp_path, speedup=1000.0)
    (source,) = to.glob("astrolabe_*/kernel.cpp")
    source.write_text(FASTER.replace("* 2.0f", "* 2.0f + 0.0f"))
    code, said = rechecked(to, capsys)
    assert code == 3 and not said["holds"] and said["source_changed"] and said["verdict"]["outcome"] == "PASSED"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_package_that_went_wrong_does_not_hold(tmp_path: Path, capsys) -> None:
    to = package(tmp_path, speedup=0.001)
    assert rechecked(to, capsys)[0] == 0
    (source,) = to.glob("astrolabe_*/kernel.cpp")
    source.write_text(FASTER.replace("* 2.0f", "* 2.1f"))
    code, said = rechecked(to, capsys)
    assert code == 3 and said["verdict"]["outcome"] == "INCORRECT"


def test_what_is_no_package_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="it has no evidence/result.json"):
        dropin.read(tmp_path)
    to = package(tmp_path, speedup=1.0)
    shutil.rmtree(to / "evidence" / "kernel")
    with pytest.raises(ExportError, match="export the run again"):
        dropin.read(to)
