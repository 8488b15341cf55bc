"""`run.py recheck`: a package that was exported is judged again by what travels with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from graph.commands.export import ExportCommand
from graph.commands.recheck import RecheckCommand
from harness.export import dropin
from harness.export.dropin import ExportError
from harness.records import Interval
from harness.store import digest
from kernels import catalog
from tests.harness.report.example import RESULT
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
@pytest.mark.usefixtures("few_samples")
def test_a_package_that_is_slower_than_it_was_or_was_changed_is_said(tmp_path: Path, capsys) -> None:
    """Its source, and what it is judged by: a tolerance that lets anything pass, beside the evidence of a right winner."""
    to = package(tmp_path, speedup=1000.0)
    (source,) = to.glob("astrolabe_*/kernel.cpp")
    (spec,) = to.glob("evidence/kernel/*/spec.py")
    (test,) = to.glob("tests/test_*.py")
    source.write_text(FASTER.replace("* 2.0f", "* 2.0f + 0.0f"))
    spec.write_text(spec.read_text() + "\n# another\n")
    test.write_text("def test_nothing():\n    pass\n")
    (to / "tests" / "conftest.py").write_text("collect_ignore_glob = ['test_*']\n")
    code, said = rechecked(to, capsys)
    assert code == 3 and not said["holds"] and said["verdict"]["outcome"] == "PASSED"
    changed = (source, spec, test, to / "tests" / "conftest.py")
    assert said["changed"] == sorted(str(path.relative_to(to)) for path in changed)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.usefixtures("few_samples")
def test_a_package_that_went_wrong_does_not_hold(tmp_path: Path, capsys) -> None:
    to = package(tmp_path, speedup=0.001)
    code, said = rechecked(to, capsys)
    assert code == 0 and said["holds"]
    (source,) = to.glob("astrolabe_*/kernel.cpp")
    source.write_text(FASTER.replace("* 2.0f", "* 2.1f"))
    code, said = rechecked(to, capsys)
    assert code == 3 and said["verdict"]["outcome"] == "INCORRECT"


@pytest.mark.parametrize("name", catalog.names())
def test_what_travels_with_a_package_is_the_kernel_that_was_judged(tmp_path: Path, name: str) -> None:
    """The spec names the baselines of both devices, and the one that was judged is the default."""
    kernel = catalog.load(name)
    for device in ("cuda", "cpu"):
        if not kernel.baselines(device):
            continue
        _, path = kernel.baseline(device)
        to = tmp_path / device
        try:
            dropin.export(kernel, path.read_text(), {"device": device}, to, device, baseline="// judged")
        except ExportError:
            continue  # an operator's schema does not have such arguments
        _, shipped = catalog.load(str(dropin.read(to).folder)).baseline(device)
        assert shipped.read_text() == "// judged"


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("changed", ["evidence/kernel/*/spec.py", "tests/test_*.py"])
def test_what_was_changed_does_not_hold_whatever_it_is(tmp_path: Path, changed: str) -> None:
    to = package(tmp_path, speedup=0.001)
    (path,) = to.glob(changed)
    path.write_text(path.read_text() + "\n# another\n")
    assert dropin.find_changes(to) == (str(path.relative_to(to)),)


def test_what_is_no_package_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="it has no evidence/result.json"):
        dropin.read(tmp_path)
    to = package(tmp_path, speedup=1.0)
    shutil.rmtree(to / "evidence" / "kernel")
    with pytest.raises(ExportError, match="export the run again"):
        dropin.read(to)


def test_a_package_without_its_list_of_files_is_changed(tmp_path: Path) -> None:
    to = package(tmp_path, speedup=1.0)
    assert dropin.find_changes(to) == ()
    (to / dropin.FILES).write_text("[]")
    assert dropin.find_changes(to) == (dropin.FILES,)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.usefixtures("few_samples")
def test_what_leaves_a_run_has_the_dtypes_that_it_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Of `--dtype float32`: the winner holds no others. The package's tests called them, and the diff asked for them."""
    folder = tmp_path / "twice"
    folder.mkdir()
    spec = SPEC.replace('("float32",)', '("float32", "float64")').replace(
        "    ),\n    flops", '        Workload(axes={"n": 40000}, dtype="float64"),\n    ),\n    flops'
    )
    other = BASELINE.replace("float32", "float64").replace("float*", "double*").replace("#include <cstdint>", "")
    for name, text in (("spec.py", spec), ("reference.py", REFERENCE), ("baseline.cpp", BASELINE + other)):
        (folder / name).write_text(text)
    shown = {"device": "cpu", "dtypes": ("float32",), "problem": False, "best": digest(FASTER), "source": "own"}
    result = RESULT.model_copy(update=shown | {"speedup": Interval(median=0.001, low=0.001, high=0.001)})
    settings = SimpleNamespace(kernel=str(folder), baseline="baseline")
    run = SimpleNamespace(
        id="r", source={"own": BASELINE + other, digest(FASTER): FASTER}.get, record=SimpleNamespace(settings=settings)
    )
    monkeypatch.setattr("graph.commands.export.find_run", lambda *_: run)
    monkeypatch.setattr("graph.commands.export.open_service", lambda *_: SimpleNamespace(result=lambda _: result))
    package = tmp_path / "package"
    assert ExportCommand(run="r", to=package).go() == 0
    made = [path for path in package.rglob("*") if path.suffix in (".py", ".md") and "evidence" not in path.parts]
    assert made and not [path for path in made if "float64" in path.read_text() and path.parent.name != "judging"]
    capsys.readouterr()
    assert ExportCommand(run="r", form="diff").go() == 0
    assert "float64" not in "".join(line for line in capsys.readouterr().out.splitlines() if line.startswith("+"))
    code, said = rechecked(package, capsys)
    assert code == 0 and said["holds"], said
