"""The contract of harness/engines: whoever made an Evaluator, it judges alike, keeps alike and raises alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import engines
from harness.engines import EngineError
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.spec import Workload

pytestmark = pytest.mark.usefixtures("few_samples")
SECRET = "a-key-of-a-models-server"
CRASH = "\n#include <csignal>\n__attribute__((constructor)) static void crash() { std::raise(SIGSEGV); }\n"


@pytest.fixture(scope="module")
def small():
    """silu_and_mul in float32 on workloads that take microseconds."""
    kernel = catalog.load("silu_and_mul")
    workloads = (
        Workload(axes={"tokens": 3, "hidden": 129}, dtype="float32", timed=False),
        Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32"),
        Workload(axes={"tokens": 5, "hidden": 320}, dtype="float32", held_out=True),
    )
    return replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))


@pytest.fixture(scope="module")
def source(small) -> str:
    return small.baseline("cpu")[1].read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[engines.Engine]:
    """Two workers, each with a core of its own where there are two."""
    pytest.importorskip("distributed")
    cores = len(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", SECRET)
        patch.setenv("ASTROLABE_CLUSTER_CONTEST_S", "0")
        made = engines.open_engine(engines.choice(f"dask:{min(2, cores)}"), "cpu")
        yield made
        made.close()


@pytest.fixture(params=["process", "dask"])
def engine(request: pytest.FixtureRequest) -> engines.Engine:
    if request.param == "dask":
        return request.getfixturevalue("cluster")
    return engines.open_engine(engines.choice("process"), "cpu")


def judged(evaluator, text: str):
    return evaluator.verify(evaluator.build(evaluator.store.put(text)))


def test_a_candidate_is_built_checked_timed_and_drawn_and_nothing_is_asked_twice(engine, small, source, tmp_path):
    store, said = Store(tmp_path), []
    with engine.evaluator(small, store, say=said.append) as evaluator:
        first = judged(evaluator, source)
        assert first.passed, first.reason
        assert Path(first.build.artefact).is_relative_to(tmp_path) and Path(first.build.artefact).exists()
        other = judged(evaluator, source + "\n// another\n")
        rivals = {"baseline": first.candidate, "incumbent": judged(evaluator, source + "\n// incumbent\n").candidate}
        timed = evaluator.measure(other, **rivals)
        assert timed.suite and timed.suite_incumbent and all(t.against_incumbent for t in timed.timings)
        assert [t.cache for t in timed.timings] == ["cold", "hot"]
        assert all(t.light_us and t.time_us > 0 for t in timed.timings)
        drawn = evaluator.draw_again(timed, baseline=first.candidate, count=6)
        assert drawn.draws is not None and drawn.draws.count == 6 and drawn.draws.differing == {"out": 0.0}
        unseen = evaluator.verify(first.build, held_out=True)
        assert unseen.passed and {c.workload for c in unseen.checks}.isdisjoint(c.workload for c in first.checks)
        probes = evaluator.probes(first.build)
        assert "-O3" in evaluator.measured["build, cpu"] and evaluator.layers
        assert timed.device == evaluator.facts.name
    assert any("timing float32 tokens=8" in text for text in said)
    assert list((tmp_path / "records" / "samples").iterdir()), "every sample comes back"
    said.clear()
    with engine.evaluator(small, store, say=said.append) as again:
        build = again.build(first.candidate)
        assert build == first.build and again.verify(build) == first
        assert again.measure(other, **rivals) == timed
        assert again.draw_again(timed, baseline=first.candidate, count=6) == drawn
        assert again.probes(build) == probes
    assert not said, "a kept answer was worked out again"


@pytest.mark.parametrize(
    ("change", "outcome", "word"),
    [
        (lambda s: s + "\nint broken( {\n", Outcome.COMPILE_ERROR, "error"),
        (lambda s: s + CRASH, Outcome.RUNTIME_ERROR, "SIG"),
    ],
    ids=["syntax", "crash"],
)
def test_a_failure_of_the_candidate_is_a_verdict_with_its_reason(
    engine, small, source, tmp_path, change, outcome, word
):
    text = change(source)
    assert text != source
    with engine.evaluator(small, Store(tmp_path)) as evaluator:
        verdict = judged(evaluator, text)
    assert verdict.outcome is outcome and word in verdict.reason, verdict.reason
    assert bool(verdict.build.artefact) is verdict.build.ok is (outcome is not Outcome.COMPILE_ERROR)


def test_what_cannot_be_asked_is_refused_alike(engine, small, source, tmp_path):
    with engine.evaluator(small, Store(tmp_path)) as evaluator:
        with pytest.raises(ValueError, match="no input"):
            evaluator.extend((), {"nothing": ("zeros",)})
        wrong = judged(evaluator, source + "\nint broken( {\n")
        with pytest.raises(ValueError, match="only a PASSED candidate is timed"):
            evaluator.measure(wrong, baseline=wrong.candidate)
        with pytest.raises(ValueError, match="no dtype"):
            engine.evaluator(small, Store(tmp_path), dtypes=("float8",))


def test_what_the_tester_adds_is_checked_too(engine, small, source, tmp_path):
    added = Workload(axes={"tokens": 2, "hidden": 64}, dtype="float32", timed=False)
    with engine.evaluator(small, Store(tmp_path)) as evaluator:
        evaluator.extend((added,), {})
        verdict = judged(evaluator, source)
    assert added.label in {check.workload for check in verdict.checks}


# --- of the cluster alone --------------------------------------------------------------------------------------------


def test_the_models_key_stays_with_the_parent(cluster):
    pids = [status.pid for status in cluster.cluster.seen]
    local = cluster.cluster.local
    pids += [local.scheduler.pid, local.supervisor.pid]
    assert len(pids) >= 3
    for pid in pids:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PATH=" in environment and SECRET.encode() not in environment
    assert SECRET in os.environ["OPENAI_API_KEY"]


def test_every_worker_has_cores_of_its_own(cluster):
    shares = [frozenset(os.sched_getaffinity(status.pid)) for status in cluster.cluster.seen]
    assert shares and all(shares) and sum(map(len, shares)) == len(frozenset().union(*shares))


def test_a_cluster_of_ones_own_lets_nobody_else_in(cluster):
    """On loopback others may connect: without the certificate they are refused."""
    from distributed import Client

    address = cluster.cluster.address
    assert address.startswith("tls://127.0.0.1:")
    with pytest.raises(OSError):
        Client(address.replace("tls://", "tcp://"), timeout=2, set_as_default=False)


@pytest.mark.parametrize("apart", [False, True], ids=["built where timed", "built apart"])
def test_a_search_is_spread_over_the_idle_devices(cluster, small, source, tmp_path, apart: bool):
    """Every number but one loses a millisecond at each call, many times what the kernel takes."""
    if cluster.width() < 2:
        pytest.skip("one core")
    slow = source.replace(
        "#include <cstdint>", "#include <cstdint>\n#include <unistd.h>\n#define WAIT 1  // tune: 1 3 0 2\n", 1
    )
    slow = slow.replace("const T* gate", "if (token == 0 && WAIT) usleep(1000); const T* gate", 1)
    with cluster.evaluator(small, Store(tmp_path)) as evaluator:
        assert not evaluator.builds_apart  # on a CPU who times builds, too
        evaluator.builds_apart, asked = apart, list[str]()
        send = evaluator._send
        evaluator._send = lambda question: (asked.append(type(question).__name__), send(question))[1]
        tuned = evaluator.tune(evaluator.store.put(slow), seconds=60)
        assert tuned.values == {"WAIT": 0} and tuned.tried == 3, tuned.reason
        assert len(evaluator.places) == 2
        variants = {evaluator.store.put(slow.replace("WAIT 1", f"WAIT {value}")) for value in (0, 2, 3)}
        assert asked.count("Compile") >= (len(variants) if apart else 0)


@pytest.mark.parametrize("text", ["threads", "process:1", "dask8"])
def test_an_unknown_engine_is_named(text: str):
    with pytest.raises(EngineError, match="there is no engine"):
        engines.choice(text)


def test_a_short_contest_is_held_there_too(engine, small, source, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    baseline, mine = store.put(source), store.put(f"{source}\n// mine\n")
    with engine.evaluator(small, store) as evaluator:
        assert evaluator.verify(evaluator.build(mine)).passed
        case = (small.spec.workloads[1], "hot")
        found = evaluator.compare_briefly(evaluator.build(mine), {"baseline": baseline}, [case])
    assert [(t.workload, t.cache) for t in found.timings] == [case] and not found.reason
    assert not (tmp_path / "store" / "records" / "samples").exists()  # it is kept nowhere


def test_a_connection_that_breaks_prints_no_traceback_of_dask() -> None:
    import logging

    from harness.engines import _connection

    _connection.silence_dask()
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    assert "distributed.client" in names
    assert [name for name in names if logging.getLogger(name).isEnabledFor(logging.ERROR)] == []
