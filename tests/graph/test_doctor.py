"""`run.py doctor`: what is here, what is not, and nothing of it a traceback."""

from __future__ import annotations

import json
import types

from graph.commands import doctor
from harness.options import from_words


def findings(tmp_path, capsys, *words: str) -> tuple[int, dict[str, tuple[str, str]]]:
    code = from_words(doctor.DoctorCommand, ["--json", "--runs-dir", str(tmp_path / "runs"), *words]).go()
    found = json.loads(capsys.readouterr().out)
    return code, {one["what"]: (one["state"], one["said"]) for one in found}


def test_a_machine_with_a_compiler_is_well_without_a_gpu_or_a_key(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    code, found = findings(tmp_path, capsys)
    assert code == 0 and found["g++"][0] == "ok" and found["sandbox"][0] in ("ok", "note")
    assert found["model server"] == ("note", "no OPENAI_API_KEY: the agents are rules (--policy chat asks models)")
    assert "torch" in found["packages"][1] and not (tmp_path / "runs").exists(), "nothing is made"


def test_without_a_compiler_nothing_can_be_tuned_and_it_says_so(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    code, found = findings(tmp_path, capsys)
    assert found["g++"][0] == "missing" and (code == 1 or found["device"][1].startswith("cuda"))


def test_a_model_server_is_asked_and_the_key_is_shown_nowhere(tmp_path, capsys, monkeypatch, httpserver) -> None:
    models = {"object": "list", "data": [{"id": "some-model", "object": "model", "created": 0, "owned_by": "me"}]}
    httpserver.expect_request("/v1/models").respond_with_json(models)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    monkeypatch.setenv("OPENAI_BASE_URL", httpserver.url_for("/v1"))
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    _, found = findings(tmp_path, capsys)
    assert found["model server"][0] == "ok" and "some-model" in found["model server"][1]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    _, found = findings(tmp_path, capsys)
    assert found["model server"][0] == "missing" and "sk-1234567890" not in str(found)


def test_what_it_says_fits_a_terminal_and_a_full_disk_is_no_note(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(doctor.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=3 << 20))
    from_words(doctor.DoctorCommand, ["--runs-dir", str(tmp_path)]).go()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok       astrolabe      0.") and max(map(len, lines[:8])) <= 60
    assert any(line.startswith("missing  disk           3 MiB free") for line in lines)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    _, found = findings(tmp_path, capsys)
    assert found["disk"][0] == "missing" and "give --runs-dir" in found["disk"][1]


def test_another_system_than_linux_is_one_sentence_to_the_doctor_and_to_a_run(tmp_path, capsys, monkeypatch) -> None:
    import run as door

    monkeypatch.setattr("sys.platform", "darwin")
    code, found = findings(tmp_path, capsys)
    assert code == 1 and found["device"][0] == "missing" and "over SSH (docs/install.md)" in found["device"][1]
    assert door.main(["--kernel", "silu_and_mul", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "darwin has none" in capsys.readouterr().err and not list(tmp_path.iterdir())
