"""bootstrap.py's own words, with a stand-in for the installers: what is slow says what it is at, what fails says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bootstrap

PROGRAM = """#!{python}
import pathlib, sys, time
if "config" in sys.argv:
    print("global.find-links='/wheels'\\nglobal.extra-index-url='file:///one\\\\nfile:///two'")
    sys.exit()
with pathlib.Path(__file__).with_name("asked").open("a") as asked:
    print(pathlib.Path(__file__).name, *sys.argv[1:], file=asked)
print("Downloading torch-2.13.0-cp311.whl (180.0 MB)", flush=True)
time.sleep(0.4)
print("ERROR: {why}", file=sys.stderr)
sys.exit({code})
"""


def stand_in(folder: Path, why: str = "no space left", **codes: int) -> Path:
    for name, code in codes.items():
        (folder / name).write_text(PROGRAM.format(python=sys.executable, code=code, why=why))
        (folder / name).chmod(0o755)
    return folder / "python"


@pytest.fixture(autouse=True)
def no_other_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)


def install(python: Path, wanted: list[str], more: list[str]) -> str:
    return bootstrap.install(python, wanted, more, [python, "-m", "pip"])


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def test_a_long_installation_says_what_it_is_at_in_a_line_that_stays(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bootstrap, "EVERY_S", 0.01)
    assert not install(stand_in(tmp_path, python=0, uv=0), ["torch"], [])
    said = capsys.readouterr()
    assert "by uv: Downloading torch-2.13.0-cp311.whl (180.0 MB)" in said.out and said.err == ""


def test_uv_looks_where_pip_is_set_up_to_look(tmp_path: Path) -> None:
    assert not install(stand_in(tmp_path, python=0, uv=0), ["torch"], ["--index", "https://more"])
    (line,) = asked(tmp_path)
    assert "--find-links /wheels --index file:///one --index file:///two" in line and "https://more" not in line


@pytest.mark.parametrize("uv", [{}, {"uv": 3}])
def test_where_uv_cannot_be_had_or_fails_pip_installs(tmp_path: Path, uv: dict[str, int], capsys) -> None:
    assert not install(stand_in(tmp_path, python=0, **uv), ["torch"], [])
    assert asked(tmp_path)[-1].startswith("python -m pip install") and capsys.readouterr().err == ""


def test_what_fails_everywhere_shows_the_installers_words(tmp_path: Path, capsys) -> None:
    assert "words above" in install(
        stand_in(tmp_path, python=3, uv=3), ["torch"], ["--extra-index-url", "https://more"]
    )
    assert "ERROR: no space left" in capsys.readouterr().err
    assert ["https://more" in line for line in asked(tmp_path)] == [False, True, False, True]


@pytest.mark.parametrize("proxy", ["", "http://me:secret@127.0.0.1:9"])
def test_an_index_of_pytorchs_that_is_out_of_reach_is_named_at_once(
    tmp_path: Path, monkeypatch, proxy: str, capsys
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    python = stand_in(tmp_path, "there is no version of torch==2.13.0+cpu", python=3, uv=3)
    said = install(python, ["torch==2.13.0+cpu"], ["--extra-index-url", "http://127.0.0.1:9/whl/cpu"])
    assert "torch==2.13.0+cpu is not where pip looks" in said and "http://127.0.0.1:9/whl/cpu cannot be reached" in said
    assert (
        "Connection refused" in said
        and ("by the proxy http://127.0.0.1:9" in said) == bool(proxy)
        and "secret" not in said
    )
    assert (
        f"by `{python} -m pip install torch==2.13.0`" in said
        and len(asked(tmp_path)) == 1
        and capsys.readouterr().err == ""
    )


def test_an_extra_brings_the_extras_that_it_names() -> None:
    with_tests = bootstrap.requirements(extras=("test",))
    assert set(bootstrap.requirements()) < set(with_tests)
    names = {line.split(">")[0].split("<")[0] for line in with_tests}
    assert {"torch", "pytest", "distributed", "psycopg[binary]"} <= names and not any("astrolabe" in n for n in names)


def test_this_pythons_pip_installs_into_an_environment_without_one(tmp_path: Path, monkeypatch) -> None:
    for name in ("with", "without", "nowhere"):
        (tmp_path / name).mkdir()
    own = stand_in(tmp_path / "with", python=0)
    assert bootstrap.find_pip(own) == [own, "-m", "pip"]
    none = stand_in(tmp_path / "without", python=1)
    monkeypatch.setattr(bootstrap.sys, "executable", str(own))
    assert bootstrap.find_pip(none) == [str(own), "-m", "pip", "--python", none]
    monkeypatch.setattr(bootstrap.sys, "executable", str(none))
    assert bootstrap.find_pip(none) == [] and "ensurepip" in asked(tmp_path / "without")[-1]
