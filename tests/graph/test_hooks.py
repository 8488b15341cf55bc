"""What is told of a run: a command, a webhook, OpenTelemetry. None of them can change it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from graph import hooks
from graph.runs import RunError, RunFolder
from graph.session import RunService
from nodes import spans
from nodes.roles import PolicyPaused
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings

TELLS = (
    "import json, os, sys; said = json.load(sys.stdin); "
    "open(sys.argv[1], 'w').write(' '.join([said['state'], said['result']['run_id'], os.environ['ASTROLABE_STATE']]))"
)


def test_a_command_gets_the_record(tmp_path: Path) -> None:
    command = f"{sys.executable} -c {json.dumps(TELLS)} {tmp_path / 'told'}"
    assert hooks.tell(hooks.check_target(command), RunFolder(tmp_path, "run"), "finished", "", {"run_id": "run"}) == ""
    assert (tmp_path / "told").read_text() == "finished run finished"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'echo first >&2; echo no room >&2; exit 4'", "failed with exit code 4: no room"),
        ("/no/such/program", "cannot be started: No such file"),
        ("http://127.0.0.1:1/hook?secret=x", "http://127.0.0.1:1 cannot be told"),
    ],
)
def test_what_fails_is_one_sentence(tmp_path: Path, command: str, said: str) -> None:
    sentence = hooks.tell(command, RunFolder(tmp_path, "run"), "finished", "", {})
    assert said in sentence and "\n" not in sentence and "secret" not in sentence


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY", "all_proxy"])
def test_a_loopback_webhook_is_never_told_through_a_proxy(
    variable: str, tmp_path: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpserver.expect_request("/hook", method="POST").respond_with_data("")
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert hooks.tell(httpserver.url_for("/hook"), RunFolder(tmp_path, "run"), "finished") == ""


def test_a_proxy_that_cannot_be_used_is_one_sentence_when_the_run_begins_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://user:word@127.0.0.1:9")
    with pytest.raises(RunError, match="ALL_PROXY=socks5://127.0.0.1:9 is a SOCKS proxy"):
        hooks.check_target("http://hook.example/x")
    assert "SOCKS proxy" in hooks.tell("http://hook.example/x", RunFolder(tmp_path, "run"), "finished")
    monkeypatch.setenv("ALL_PROXY", "http://user:word@127.0.0.1:9")
    said = hooks.tell("http://hook.example/x", RunFolder(tmp_path, "run"), "finished")
    assert "through the proxy ALL_PROXY=http://127.0.0.1:9" in said and "word" not in said


@pytest.mark.parametrize("target", ["", "  ", "'unfinished", "http://", "https://[::1/x"])
def test_what_cannot_be_called_is_refused_before_the_run(target: str) -> None:
    with pytest.raises(RunError, match="--on-end"):
        hooks.check_target(target)


def test_a_webhook_gets_the_record(tmp_path: Path, httpserver: HTTPServer) -> None:
    seen: list[dict] = []

    def take(request):
        from werkzeug import Response

        seen.append(json.loads(request.data))
        return Response(status=500 if len(seen) > 1 else 204)

    httpserver.expect_request("/hook", method="POST").respond_with_handler(take)
    url = httpserver.url_for("/hook")
    assert hooks.tell(url, RunFolder(tmp_path, "run"), "paused", "the server is down", {"a": 1}) == ""
    assert seen[0]["state"] == "paused" and seen[0]["message"] == "the server is down" and seen[0]["result"] == {"a": 1}
    assert hooks.tell(url, RunFolder(tmp_path, "run"), "paused").endswith("answered HTTP 500")


def test_the_command_line_tells_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import run as door

    class Down(Script):
        def coder(self, request):
            raise PolicyPaused("the server does not answer")

    script = Down({1: ["speed 1.3"]})
    RunService(tmp_path, paper_context(script)).start(record(settings(rounds=1)), BASELINE, Silent(), nobody)
    monkeypatch.setattr("graph.opening.open_context", paper_context(script))
    command = f"{sys.executable} -c {json.dumps(TELLS)} {tmp_path / 'told'}"
    words = ["resume", "run", "--runs-dir", str(tmp_path), "--no-live", "--on-end"]
    assert door.main([*words, command]) == 75
    assert (tmp_path / "told").read_text() == "paused run paused"
    assert door.main([*words, "false"]) == 75  # its failure is said, and changes nothing
    assert "--on-end: false failed with exit code 1" in capsys.readouterr().err


# --- OpenTelemetry -------------------------------------------------------------------------------------------------


def test_without_a_collector_nothing_is_imported_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans._ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    with spans.exporting(), spans.span("node", a=1) as more:
        more["b"] = 2
        assert spans._provider is None


def test_spans_without_their_packages_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(spans.SpansMissing, match=r"pip install -e '\.\[otel\]'"), spans.exporting():
        pass


def test_a_runs_nodes_and_model_calls_are_spans(
    tmp_path: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="the otel extra is not installed"
    )
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="the otel extra is not installed"
    )
    found: dict[str, tuple[bytes, bytes, dict[str, object]]] = {}

    def take(request):
        import gzip

        from werkzeug import Response

        data = gzip.decompress(request.data) if request.headers.get("content-encoding") == "gzip" else request.data
        sent = collector.ExportTraceServiceRequest.FromString(data)
        for one in (s for r in sent.resource_spans for scope in r.scope_spans for s in scope.spans):
            facts = {a.key: a.value.string_value or a.value.int_value for a in one.attributes}
            found[one.name] = (one.span_id, one.parent_span_id, facts)
        return Response(status=200)

    class Calls(Script):
        def planner(self, request):
            with spans.span("chat some-model", gen_ai__request__model="some-model") as spent:
                spent["gen_ai__usage__input_tokens"] = 12
            return super().planner(request)

        def coder(self, request):
            with spans.span(f"chat for {request.plan.id}"):
                return super().coder(request)

    httpserver.expect_request("/v1/traces", method="POST").respond_with_handler(take)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", httpserver.url_for("").rstrip("/"))
    with spans.exporting():
        pass
    script = Calls({1: ["compile error", "speed 0.5"]})
    ending = RunService(tmp_path, paper_context(script)).start(
        record(settings(rounds=1, width=2, repairs=0)), BASELINE, Silent(), nobody
    )
    assert ending.state == "finished"
    run, planner, call = (found[name] for name in ("run", "planner", "chat some-model"))
    assert run[2]["astrolabe.run"] == "run" and planner[1] == run[0] and call[1] == planner[0]
    assert call[2] == {"gen_ai.request.model": "some-model", "gen_ai.usage.input_tokens": 12}
    assert found["chat for p0"][1] == found["chat for p1"][1] == found["coder"][0]  # written in parallel
    assert {"tester", "baseline", "profiler", "held_out"} <= set(found)
