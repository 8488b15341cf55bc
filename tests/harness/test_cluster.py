"""What a machine lends, who may talk to whom, and what a job carries: without a cluster."""

from __future__ import annotations

import errno
import logging
import os
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")
from distributed.versions import VersionMismatchWarning

from harness import device, jobs
from harness.cluster import ROOT, ClusterError, Status, fitness, places, security, software
from harness.cluster.homes import Homes
from harness.cluster.local import Local
from harness.cluster.places import ClusterPlace
from harness.cluster.scheduler import configure
from harness.cluster.supervisor import environment
from harness.cluster.worker import Here, JobElsewhere, Orders
from harness.engines import EngineChoice, EngineError
from harness.engines.dask import Cluster
from harness.evaluate import Evaluator
from harness.jobs import EvaluationServer, Job, JobAnswer
from harness.judge.builds import place_build
from harness.questions import CheckToolchain, Compile, EvaluationQuestion
from harness.records import Build, Check, Comparison, Interval, Outcome, Suite, Verdict
from harness.remote import Clock
from harness.store import Store, digest
from kernels import catalog
from kernels.catalog import Kernel, KernelError

# --- places -----------------------------------------------------------------------------------------------------------


def test_each_gpu_has_cores_near_it_and_builds_have_the_rest():
    near = {"0": tuple(range(0, 16)), "1": tuple(range(16, 32))}
    first, second, builds = places.of_gpus(None, range(32), near)
    assert set(first.cores) <= set(near["0"]) and set(second.cores) <= set(near["1"])
    assert (first.gpu, second.gpu, builds.kind) == ("0", "1", "builder")
    shares = [set(first.cores), set(second.cores), set(builds.cores)]
    assert set.union(*shares) == set(range(32)) and sum(map(len, shares)) == 32
    assert builds.slots == len(builds.cores) >= 16


@pytest.mark.parametrize(("cores", "gpus"), [(1, 1), (2, 4), (3, 2)])
def test_few_cores_are_shared_rather_than_missing(cores: int, gpus: int):
    made = places.of_gpus(None, range(cores), {str(gpu): () for gpu in range(gpus)})
    assert len(made) == gpus + 1 and all(place.cores for place in made)


def test_only_the_gpus_that_were_named_are_lent():
    made = places.of_gpus(["1"], range(8), {"0": (), "1": ()})
    assert [place.gpu for place in made if place.kind == "device"] == ["1"]
    with pytest.raises(ClusterError, match="no NVIDIA GPU"):
        places.of_gpus(None, range(8), {})


def test_shares_of_a_cpu_do_not_overlap():
    made = places.of_cores(3, range(8))
    assert [place.cores for place in made] == [(0, 1), (2, 3), (4, 5)]
    with pytest.raises(ClusterError, match="9 workers on 8 cores"):
        places.of_cores(9, range(8))


def test_a_worker_sees_its_gpu_only_and_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("ASTROLABE_CHECKPOINTER", "postgresql://me:secret@host/x")
    monkeypatch.setenv("PYTHONPATH", "/opt/modules/dask::carried")
    made = environment(ClusterPlace(name="p", kind="device", device="cuda", gpu="3", cores=(0, 1)))
    assert made["CUDA_VISIBLE_DEVICES"] == "3" and not any("secret" in value for value in made.values())
    folders = [str(ROOT), "/opt/modules/dask", str(Path("carried").absolute())]
    assert made["PYTHONPATH"].split(":") == folders, "where a cluster's modules put its packages; it works elsewhere"


def test_what_the_scheduler_said_last_is_why_it_did_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "distributed.py").write_text("raise ImportError('distributed is broken here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ClusterError, match="scheduler did not start: .*distributed is broken here"):
        Local("cpu", 1)


def test_a_cluster_of_ones_own_without_a_gpu_says_so_at_once(monkeypatch: pytest.MonkeyPatch):
    """torch has one, nvidia-smi lists none: nobody would join."""
    monkeypatch.setattr(places, "gpus", dict)
    monkeypatch.setattr(Local, "start_scheduler", lambda _self: pytest.fail("a cluster that nobody can join"))
    with pytest.raises(ClusterError, match="no NVIDIA GPU was found here"):
        Local("cuda", None)


def test_no_part_of_a_cluster_asks_gpus_for_their_load_or_looks_at_stacks(monkeypatch: pytest.MonkeyPatch):
    """It does so beside what is timed, and where NVML does not answer no part would start."""
    from dask import config
    from distributed.diagnostics import nvml

    monkeypatch.setattr(nvml, "NVML_STATE", nvml.NVMLState.UNINITIALIZED)
    monkeypatch.setattr(nvml, "pynvml", None)  # asked for anything it fails
    configure()
    assert nvml.device_get_count() == 0 and not config.get("distributed.worker.profile.enabled")


# --- who joins --------------------------------------------------------------------------------------------------------


def status(kind: str, state: str) -> Status:
    known = {"facts": device.facts("cpu"), "memory_bytes": 1 << 30} if kind == "device" else {}
    return Status(place=f"host {kind}", kind=kind, state=state, **known)


def joining(*seen: Status, devices: int = 2) -> Cluster:
    """A cluster of that many devices of its own, as it is while they join."""
    made = Cluster.__new__(Cluster)
    made.choice, made.seen, made.others, made.address = EngineChoice(name="dask"), list(seen), 0, "tls://here"
    made.said_of_it = []
    made.say = made.said_of_it.append
    made.local = SimpleNamespace(devices=devices, check=lambda: None, last_words=lambda _lines: "Xid 79")
    return made


def test_a_gpu_that_never_joins_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.engines._connection.JOIN_S", 0.0)
    made = joining(status("device", "ready"), status("builder", "ready"))
    assert len(made._first("auto")) == 1 and "not all devices" in made.said_of_it[0] and "Xid 79" in made.said_of_it[0]
    with pytest.raises(EngineError, match="no device .* is ready .*Xid 79"):
        joining(status("builder", "ready"))._first("auto")


def test_other_versions_are_said_in_a_line_and_never_by_dasks_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.engines._connection.software", lambda: "Python 3.11, torch 2.13.0")
    made, same = joining(), status("device", "ready").model_copy(update={"software": "Python 3.11, torch 2.13.0"})
    made.other_software = set()
    other = same.model_copy(update={"place": "far gpu 0", "software": "Python 3.12, torch 2.13.0"})
    made._name_other_software([same, other])
    made._name_other_software([other, other.model_copy(update={"place": "far gpu 1"})])
    assert made.said_of_it == ["far gpu 0 has Python 3.12 where this machine has Python 3.11"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        configure()
        warnings.warn(VersionMismatchWarning("Mismatched versions found"), stacklevel=1)
        for said in ("Mismatched versions found\n\n+--+", "another word"):
            record = logging.LogRecord("distributed.worker", logging.WARNING, "", 0, said, (), None)
            assert bool(logging.getLogger("distributed.worker").filter(record)) == (said == "another word")
    assert warned == []
    assert software().startswith("Python 3.") and "torch 2." in software() and "+" not in software()


def test_a_closed_cluster_is_not_opened_again_by_a_question_on_its_way():
    made = joining()
    made.lock, made.closed, made.lost_s = threading.Lock(), threading.Event(), 60.0
    made.contents, made.client = {}, None
    made.local.start_scheduler = lambda: pytest.fail("a scheduler that nobody would end")
    made.closed.set()
    with pytest.raises(EngineError, match="was closed"):
        made.connect_again(None)
    assert not made.said_of_it


# --- who may talk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "tls", "insecure", "answer"),
    [
        ("127.0.0.1:8786", False, False, "tcp://127.0.0.1:8786"),
        ("tls://127.0.0.1:8786", True, False, "tls://127.0.0.1:8786"),
        ("192.0.2.7:8786", True, False, "tls://192.0.2.7:8786"),
        ("tcp://192.0.2.7:8786", False, True, "tcp://192.0.2.7:8786"),
        ("192.0.2.7:8786", False, False, "beyond this machine"),
        ("tls://127.0.0.1:8786", False, False, "wants --tls"),
        ("tcp://127.0.0.1:8786", True, False, "has no use for"),
        ("somewhere", False, False, "no address of a scheduler"),
        ("http://127.0.0.1:1", False, False, "no address of a scheduler"),
    ],
)
def test_beyond_this_machine_tls_is_demanded(address: str, tls: bool, insecure: bool, answer: str, tmp_path: Path):
    folder = tmp_path if tls else None
    if answer.startswith(("tcp://", "tls://")):
        assert security.check_address(address, folder, insecure=insecure) == answer
    else:
        with pytest.raises(ClusterError, match=answer):
            security.check_address(address, folder, insecure=insecure)


def test_certificate_and_key_are_made_once_and_are_the_users_alone(tmp_path: Path):
    folder = security.make_certificate(tmp_path / "tls")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    security.make_certificate(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert security.of(folder).require_encryption
    with pytest.raises(ClusterError, match="no cert.pem"):
        security.of(tmp_path)


# --- fitness ----------------------------------------------------------------------------------------------------------


def against_itself(comparison: Comparison) -> Verdict:
    median = {Comparison.FASTER: 1.04, Comparison.SLOWER: 0.96}.get(comparison, 1.0)
    return Verdict(
        candidate="c" * 64, kernel="k", device="d", outcome=Outcome.PASSED,
        checks=(Check(workload="w", name="ordinary", passed=True),),
        suite=Suite(speedup=Interval(median=median, low=median, high=median), comparison=comparison),
    )  # fmt: skip


@pytest.mark.parametrize("comparison", list(Comparison))
def test_a_place_where_a_binary_differs_from_itself_is_not_fit(comparison: Comparison):
    said = fitness.find_fault(against_itself(comparison))
    assert bool(said) is (comparison in (Comparison.FASTER, Comparison.SLOWER))
    assert not said or f"came out {comparison}" in said


def here(folder: Path, **more) -> Here:
    place = ClusterPlace(name="here", kind="device", device="cpu", cores=(min(os.sched_getaffinity(0)),))
    return Here(Orders(address="tcp://127.0.0.1:1", place=place, folder=str(folder), **{"contest_s": 0, **more}))


def test_a_contest_is_due_at_joining_and_whenever_it_is_too_long_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    said = (Comparison.SAME, Comparison.SLOWER, Comparison.UNCLEAR, Comparison.FASTER, Comparison.FASTER)
    verdicts = [against_itself(comparison) for comparison in said]

    def contest(*_arguments) -> Verdict:
        told.append("contest")
        return verdicts.pop(0)

    monkeypatch.setattr(fitness, "against_itself", contest)
    made = here(tmp_path, contest_s=3600.0)
    made.look()
    made.look()
    assert told == ["contest"] and not made.unfit and list(made.resources().values()) == [1]
    made.contest_at -= 3600.0
    made.look()
    assert told == ["contest"] * 3 and not made.unfit, "once SLOWER is chance"
    made.contest_at -= 3600.0
    made.look()
    assert told == ["contest"] * 5 and "came out FASTER" in made.unfit and made.resources() == {}
    assert made.status()["state"] == "set aside"


def test_a_full_disk_sets_a_place_aside_and_its_job_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = here(tmp_path, room_bytes=1 << 62)
    made.look()
    assert "its disk is full" in made.unfit
    made = here(tmp_path)
    made.look()
    assert not made.unfit

    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(made.bench, "answer", full)
    with pytest.raises(JobElsewhere) as gone:
        made.answer(job(), dict, lambda _text: None)
    assert "disk is full" in gone.value.args[1] and made.unfit
    with pytest.raises(JobElsewhere):  # what waited here goes elsewhere, too
        made.answer(job(), dict, lambda _text: None)


def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device, "why_no_cuda", lambda: "no NVIDIA GPU was found")
    made = here(tmp_path)
    made.place = made.place.model_copy(update={"device": "cuda", "gpu": "7"})
    made.look()
    assert made.unfit == "GPU 7 cannot be used: no NVIDIA GPU was found" and made.resources() == {}


def test_a_gpu_is_opened_before_it_is_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Or whoever asks first waits for it, and one that cannot be opened is found out by a candidate."""

    def broken() -> None:
        raise RuntimeError("CUDA error: the GPU has fallen off the bus")

    made = here(tmp_path)
    monkeypatch.setattr(made, "alive", broken)
    made.look()
    assert "fallen off the bus" in made.unfit and made.resources() == {}


def test_what_a_gpu_that_fell_off_said_of_a_candidate_is_not_passed_on(tmp_path: Path, monkeypatch):
    made = here(tmp_path)
    made.look()
    monkeypatch.setattr(made.bench, "answer", lambda *_arguments: JobAnswer(record="RUNTIME_ERROR"))
    assert made.answer(job(), dict, lambda _text: None).record == "RUNTIME_ERROR"

    def gone() -> None:
        raise RuntimeError("CUDA error: the GPU has fallen off the bus")

    monkeypatch.setattr(made, "alive", gone)
    with pytest.raises(JobElsewhere, match="fallen off"):
        made.answer(job(), dict, lambda _text: None)


def test_only_gpus_that_one_may_see_are_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listing = tmp_path / "nvidia-smi"
    listing.write_text(
        "#!/bin/sh\necho '0, 00000000:3B:00.0, GPU-aa11-1'; echo '1, 00000000:5E:00.0, GPU-bb22-1'\n"
        "echo '2, 00000000:86:00.0, GPU-cc33-1'\n"
    )
    listing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert list(places.gpus()) == ["0", "1", "2"]
    for visible, seen in (("2,0", ["2", "0"]), ("GPU-cc33-1, GPU-aa", ["2", "0"]), ("", []), ("MIG-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert list(places.gpus()) == seen


def test_a_device_is_one_jobs_at_a_time_also_between_supervisors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ASTROLABE_LOCKS", str(tmp_path))
    made, entered, inside = here(tmp_path), threading.Event(), threading.Event()
    script = (
        "import sys; from pathlib import Path; from tests.harness.test_cluster import here\n"
        "with here(Path(sys.argv[1])).exclusive(): print('held', flush=True); sys.stdin.read()"
    )
    import subprocess
    import sys

    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    try:
        assert other.stdout.readline() == b"held\n"

        def enter() -> None:
            entered.set()
            with made.exclusive():
                inside.set()

        thread = threading.Thread(target=enter, daemon=True)
        thread.start()
        assert entered.wait(60) and not inside.wait(0.3)
    finally:
        other.stdin.close()
        other.stdout.close()
        other.wait(60)
    assert inside.wait(60)
    thread.join(60)


# --- jobs -------------------------------------------------------------------------------------------------------------


def job(question: EvaluationQuestion | None = None) -> Job:
    question = question or CheckToolchain(backend="cpu")
    return Job(question=question, asker="a", facts=device.facts("cpu"), memory_bytes=1 << 34, session=None)


def building(source: bytes) -> tuple[Job, dict[str, bytes]]:
    name = digest(source)
    return job(Compile(candidate=name, backend="cpu", entry={})), {name: source}


def test_the_same_question_has_the_same_name_and_another_one_another():
    assert job().name == job().name != job(CheckToolchain(backend="cuda")).name


def test_a_kernel_travels_without_its_wrong_candidates():
    kernel = catalog.load("silu_and_mul")
    bundle, contents = jobs.bundle_kernel(kernel)
    assert {"spec.py", "reference.py", "baseline.cpp"} <= set(bundle.files)
    assert not any(name.startswith("wrong") or name.endswith(".md") for name in bundle.files)
    assert set(bundle.files.values()) == set(contents) and all(digest(data) == name for name, data in contents.items())


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalog, "FILES_BYTES", 1 << 20)
    spec = catalog.load("silu_and_mul").spec
    (tmp_path / "weights.bin").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(KernelError, match="more than 1 MiB"):
        jobs.bundle_kernel(Kernel(spec=spec, folder=tmp_path))


def test_a_build_of_the_run_that_this_one_was_forked_from_travels(tmp_path: Path):
    """Its record names the artefact where it was made."""
    origin, store = Store(tmp_path / "origin"), Store(tmp_path / "fork")
    artefact = origin.build_folder("key") / "candidate.so"
    artefact.write_bytes(b"library")
    origin.keep("build", "key", Build(candidate="c", backend="cpu", ok=True, artefact=str(artefact)))
    origin.link_to(store.folder)
    one, contents = jobs.bundle_build("key", store.find_record("build", "key", Build))
    assert one.files == {"candidate.so": digest(b"library")} and list(contents.values()) == [b"library"]
    there = place_build(one.build, tmp_path / "far", {path: contents[name] for path, name in one.files.items()})
    assert Path(there.artefact).read_bytes() == b"library"


def test_no_file_is_written_outside_its_folder(tmp_path: Path):
    build = Build(candidate="c", backend="cpu", ok=True, artefact="candidate.so")
    with pytest.raises(ValueError, match="no path"):
        place_build(build, tmp_path / "build", {"../outside": b"x"})
    assert not (tmp_path / "outside").exists()


def test_contents_that_are_not_what_they_are_called_are_refused(tmp_path: Path):
    asked, contents = building(b"y")
    said = EvaluationServer(tmp_path).answer(asked, dict.fromkeys(contents, b"x"), print)
    assert said.error and "another hash" in said.error[1]


def test_a_build_travels_back_and_leaves_nothing(tmp_path: Path):
    asked, contents = building(b'extern "C" void f() {}\n')
    said = EvaluationServer(tmp_path).answer(asked, contents, lambda _text: None)
    there = place_build(Build.model_validate_json(said.record), tmp_path / "store", said.files)
    assert there.ok and Path(there.artefact).read_bytes()[:4] == b"\x7fELF"
    assert not [path for path in (tmp_path / "builders").rglob("*") if path.is_file()]


def test_a_question_that_is_too_much_for_the_devices_memory_is_the_problems_not_the_devices(
    tmp_path: Path, monkeypatch
):
    torch = pytest.importorskip("torch")

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB. GPU 0 has ...")

    monkeypatch.setattr(EvaluationServer, "_answer", full)
    kind, words = EvaluationServer(tmp_path).answer(job(), {}, print).error
    assert kind == "KernelError" and words.endswith("than this device has: CUDA out of memory")
    broken = torch.AcceleratorError if hasattr(torch, "AcceleratorError") else OSError
    monkeypatch.setattr(
        EvaluationServer, "_answer", lambda *_: (_ for _ in ()).throw(broken("CUDA error: device lost"))
    )
    with pytest.raises(broken):  # of the device: the job goes elsewhere
        EvaluationServer(tmp_path).answer(job(), {}, print)


def test_a_compiler_without_room_is_the_machines_failure_not_the_candidates(tmp_path: Path, monkeypatch):
    failed = Build(candidate="c", backend="cpu", ok=False, log="cc1plus: fatal error: No space left on device")
    monkeypatch.setattr("harness.questions.compile_build", lambda *_arguments, **_entry: failed)
    asked, contents = building(b"x")
    with pytest.raises(OSError) as full:
        EvaluationServer(tmp_path).answer(asked, contents, lambda _text: None)
    assert full.value.errno == errno.ENOSPC


def test_who_asked_before_is_answered_where_its_kernel_is_warm():
    homes, places = Homes(), ["gpu 0", "gpu 1"]
    first, second = homes.take("a", places), homes.take("b", places)
    assert {first, second} == set(places)
    assert homes.take("a", places) == ""  # both are busy: the scheduler's choice
    homes.give(first)
    homes.give(second)
    for asker, home in (("b", second), ("a", first), ("a", first)):
        assert homes.take(asker, places) == home
        homes.give(home)
    assert homes.take("a", places) == first
    assert homes.take("a", places) == second  # several questions at once go to several
    homes.give(second)
    homes.give(first)
    assert homes.take("a", [second]) == second == homes.home["a"]  # its own is gone: it moves
    homes.give(second)
    homes.leave("a")
    homes.leave("b")
    assert homes.take("c", places) and not homes.home.keys() & {"a", "b"}


def test_waiting_is_what_nobody_worked_on(monkeypatch: pytest.MonkeyPatch):
    clock, now = Clock(), [0.0]
    monkeypatch.setattr("harness.remote.time.monotonic", lambda: now[0])
    for at, asking, working in (
        (0, 1, 0), (2, 0, 1), (3, 1, 0), (7, -1, -1), (8, 0, 1), (10, -1, -1), (50, 0, 0),
    ):  # fmt: skip
        now[0] = float(at)
        clock.turn(asking, working)
    assert clock.total == 3.0  # from 0 to 2 and from 7 to 8


def test_an_evaluator_of_a_device_elsewhere_looks_at_none_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    facts = device.facts("cpu").model_copy(update={"name": "another machine's"})
    for name in ("facts", "memory_bytes"):
        monkeypatch.setattr(device, name, lambda _on: pytest.fail("this machine was looked at"))
    with Evaluator(catalog.load("silu_and_mul"), "cpu", Store(tmp_path), facts=facts, memory_bytes=1 << 34) as made:
        assert made.facts.name == "another machine's"
