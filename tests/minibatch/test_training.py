"""Training that learns, several processes that train one model, kills, and the command line's sentences."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch

from kernels import catalog
from minibatch import commands, graphs, models, objectives, ranks, synthetic, training
from minibatch.batches import BatchLoader
from minibatch.graphs import GraphError
from run import main, parse
from tests import forked

ROOT = Path(__file__).resolve().parents[2]


TINY = ("--graph", "tiny", "--fanout", "5", "5", "--batch", "128", "--lr", "0.01", "--json")


def without_gpu() -> dict[str, str]:
    """The environment of a process that is to train on the CPU wherever the tests run."""
    return os.environ | {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def trained(capsys):
    """trained(*words, runs=folder): the records of the epochs that `run.py epoch` makes in this process."""

    def go(*more: str, runs: Path) -> list[dict]:
        assert main(["epoch", *TINY, "--threads", "1", *more, "--runs-dir", str(runs)]) == 0
        return json.loads(capsys.readouterr().out)["epochs"]

    return go


def test_training_beats_chance_and_what_a_node_alone_shows(tmp_path, trained, capsys):
    epochs = trained("--epochs", "4", runs=tmp_path)
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    # The most frequent of six classes has 20 %; a linear model of a node's own features reaches some 50 %.
    assert epochs[-1]["valid_accuracy"] > 0.75
    assert main(["infer", "--graph", "tiny", "--fanout", "20", "20", "--json", "--runs-dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sampled_accuracy"] == pytest.approx(found["full_accuracy"], abs=0.03)
    assert found["full_accuracy"] > 0.75


def test_training_goes_on_where_it_was_left(tmp_path, trained):
    whole = trained("--epochs", "3", runs=tmp_path / "whole")
    trained("--epochs", "2", runs=tmp_path / "parts")
    rest = trained("--epochs", "1", "--resume", runs=tmp_path / "parts")
    assert [epoch["number"] for epoch in rest] == [2]
    assert rest[0]["edges"] == whole[2]["edges"], "another order or other neighbours"
    assert rest[0]["loss"] == pytest.approx(whole[2]["loss"], rel=0.2)  # dropout draws anew


# Salient's two ranks are started, killed and gone on with below; two imports of PyTorch take longer than all epochs.
@pytest.mark.parametrize("rung", [pytest.param("salient", marks=pytest.mark.slow), "gpu-fused"])
def test_two_processes_train_one_model(tmp_path, rung, monkeypatch, capfd):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["epoch", *TINY, "--epochs", "4", "--ranks", "2", "--rung", rung, "--runs-dir", str(tmp_path)]
    words += ["--audit"] if rung == "gpu-fused" else []
    monkeypatch.setattr(sys, "argv", [str(ROOT / "run.py"), *words])
    assert main(words) == 0
    found = json.loads(capfd.readouterr().out)
    epochs = found["epochs"]
    assert found["audited"] == ("--audit" in words)
    assert epochs[0]["batches"] == 4  # of 900 seeds 450 each
    assert epochs[-1]["valid_accuracy"] > 0.5


def test_ranks_see_every_seed_once(tmp_path):
    graph = synthetic.generate("tiny")
    parts = [training.order(graph, 1, 2, rank, 4) for rank in range(4)]
    assert len({len(part) for part in parts}) == 1
    assert torch.equal(torch.cat(parts).sort().values, graph.train.sort().values)
    assert not torch.equal(parts[0], training.order(graph, 1, 3, 0, 4))


def test_a_rank_that_is_killed_ends_the_others_with_one_sentence_and_training_goes_on(tmp_path, trained):
    words = ["epoch", "--graph", "tiny", "--fanout", "5", "5", "--batch", "32", "--epochs", "2000", "--ranks", "2"]
    code = "import run, sys; sys.argv[0] = 'run.py'; sys.exit(run.main(sys.argv[1:]))"
    checkpoint = tmp_path / "minibatch" / "tiny-sage.pt"
    with forked.Program(code, *words, "--runs-dir", tmp_path, environment=without_gpu()) as parent:
        until = time.monotonic() + 120
        while not checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.05)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(int(children[1]), signal.SIGKILL)
        assert parent.wait(timeout=60) == 2
        said = parent.stderr.read()
    assert (
        f"rank 1 was killed by signal 9, so the others were ended too; the last checkpoint is {checkpoint}"
        in " ".join(said.split())
    )
    assert not Path(f"/proc/{children[0]}").exists()
    kept = training.load_checkpoint(checkpoint)["epoch"]
    assert kept >= 0
    assert [epoch["number"] for epoch in trained("--epochs", "1", "--resume", runs=tmp_path)] == [kept + 1]


def test_a_rank_that_dies_is_noticed_while_the_first_waits_for_it(tmp_path):
    """As over NCCL, where the others never return from what they wait in."""
    program = tmp_path / "rank.py"
    program.write_text("import os, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 9)\ntime.sleep(100)\n")
    began = time.monotonic()
    with pytest.raises(GraphError, match="rank 1 was killed by signal 9, so the others were ended too"):
        ranks.start([str(program)], 3, tmp_path / "checkpoint.pt")
    assert time.monotonic() - began < 50


def test_a_checkpoint_is_gone_on_with_by_another_rung(tmp_path, trained):
    trained("--rung", "salient", "--epochs", "2", runs=tmp_path)
    epochs = trained("--rung", "gpu-fused", "--resume", "--epochs", "1", runs=tmp_path)
    epochs += trained("--rung", "salient", "--resume", "--epochs", "1", runs=tmp_path)
    assert [epoch["number"] for epoch in epochs] == [2, 3]
    assert epochs[-1]["valid_accuracy"] > 0.7


def test_a_rank_without_a_gpu_of_its_own_says_so(monkeypatch):
    beyond = torch.cuda.device_count()
    for name, value in {"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": str(beyond)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(GraphError, match=f"rank 5 is to have GPU {beyond} of this machine, and there are {beyond}"):
        ranks.join("cuda")


@pytest.mark.parametrize(("well", "parted"), [(True, [True]), (False, [])])
def test_ranks_part_over_nccl_only_where_all_went_well_and_without_captured_graphs(well, parted, monkeypatch):
    class Captured:
        """In a cycle of references, as a trainer is by frames that PyTorch's imports keep."""

    made = Captured()
    made.itself, held, seen, ends = made, weakref.ref(made), [], []
    del made
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: seen.append(held() is None))
    monkeypatch.setattr(ranks.atexit, "register", lambda *call: ends.append(call))
    ranks.leave(well)
    assert seen == parted
    assert ends == ([] if well else [(ranks.end, 1)])


def test_full_memory_of_a_gpu_is_said_in_one_sentence(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has less.")

    monkeypatch.setattr(commands, "_train", full)
    assert main(["epoch", "--graph", "tiny", "--runs-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "the GPU's memory is full (CUDA out of memory. Tried to allocate 2.00 GiB): take a smaller --batch" in said
    assert len(said.strip().splitlines()) == 1


def sampled_accuracy(model: torch.nn.Module, loader: BatchLoader, ids: torch.Tensor) -> float | None:
    return objectives.of(loader.graph).metric_of(training.infer_sampled(model, loader, ids, "cpu"))


@pytest.mark.parametrize("kind", ["gat", "gin", "sage-ri"])
def test_other_models_take_features_as_a_gpu_has_them(kind):
    """In bfloat16, with weights and gradients of float32."""
    pytest.importorskip("torch_geometric")
    graph = synthetic.generate("tiny", seed=1)
    torch.manual_seed(0)
    model = models.make(kind, graph.features.shape[1], 32, graph.classes, 2, dropout=0.0)
    with BatchLoader(graph, [5, 5], 128, threads=1) as loader:
        batches = loader.epoch(graph.train[:128])
        batch = next(batches)
        layers = batch.hops[::-1]
        logits = model(layers, training.inputs_of(batch, "cuda"))
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, model(layers, training.inputs_of(batch, "cpu")), rtol=0.05, atol=0.05)
        torch.nn.functional.cross_entropy(logits, batch.y).backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("kind", ["gat", "gin", "sage-ri"])
def test_other_models_learn_and_infer_from_all_neighbours(kind, monkeypatch):
    pytest.importorskip("torch_geometric")
    graph = synthetic.generate("tiny", seed=1)
    torch.manual_seed(0)
    model = models.make(kind, graph.features.shape[1], 32, graph.classes, 2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with BatchLoader(graph, [5, 5], 128, threads=1) as loader:
        for number in range(3):
            training.train_epoch(model, optimizer, loader, training.order(graph, 0, number), number, "cpu")
        assert sampled_accuracy(model, loader, graph.valid) > 0.5
    widest = int((graph.rowptr[1:] - graph.rowptr[:-1]).max())
    with BatchLoader(graph, [widest] * 2, 64, threads=1) as loader:
        sampled = sampled_accuracy(model, loader, graph.test[:64])
    monkeypatch.setattr(training, "FULL_BYTES", 4_000_000)  # in pieces
    assert training.full_accuracy(model, graph, graph.test[:64]) == pytest.approx(sampled, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--fanout", "5", "0"), "fanouts must be at least 1"),
        (("--graph", "nope"), "there is no graph 'nope'"),
        (("--gpus", "99"), "--gpus 99: there are"),
        (("--rung", "gpu", "--model", "gin"), "our kernels are GraphSAGE's"),
        (("--rung", "salient", "--features", "hbm"), "features in host memory"),
        (("--rung", "pyg", "--features", "hbm"), "take pyg-hbm for --features hbm"),
        (("--rung", "pyg-hbm", "--features", "host"), "take pyg for --features host"),
        (("--cache-gib", "1"), "the size of the cache that a gpu rung has with --features host"),
        (("--ranks", "2", "--gpus", "2"), "--gpus 2: there are" if torch.cuda.device_count() < 2 else "give one"),
        (("--resume", "--graph", "tiny"), "there is no checkpoint"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_with_one_sentence(words, says, tmp_path, capsys):
    assert main(["epoch", *words, "--runs-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--checkpoint", "{}"), "is a folder; name a file"),
        (("--report", "{}"), "is a folder; name a file"),
        (("--runs-dir", "{}/file"), "file is no folder"),
        (("--checkpoint", "{}/file/here.pt"), "file is no folder"),
    ],
)
def test_places_that_cannot_be_written_are_said_before_there_is_work(words, says, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    there = [word.format(tmp_path) for word in words]
    assert main(["epoch", "--graph", "tiny", "--runs-dir", str(tmp_path), *there]) == 2
    assert says in capsys.readouterr().err


def test_a_rung_that_does_not_sample_by_edge_weights_says_so(tmp_path, capsys):
    graph = synthetic.generate("tiny")
    graph.edge_weights = torch.ones(graph.edges)
    graphs.save(graph, tmp_path / "weighted")
    words = ["--graph", str(tmp_path / "weighted"), "--epochs", "1", "--fanout", "4", "4", "--runs-dir", str(tmp_path)]
    assert main(["epoch", *words, "--rung", "gpu-fused"]) == 2
    assert "edge_weights, and --rung gpu-fused does not sample by them: take --rung salient" in capsys.readouterr().err
    assert main(["epoch", *words]) == 0  # on a GPU too, by the rung that does
    assert main(["infer", "--graph", str(tmp_path / "weighted"), "--runs-dir", str(tmp_path)]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("rung", ["gpu-graph", "gpu-layers", "pyg-hbm"])
def test_rungs_of_a_gpu_say_that_they_need_one(rung, tmp_path, capsys):
    assert main(["epoch", "--rung", rung, "--runs-dir", str(tmp_path)]) == 2
    assert f"--rung {rung} needs a GPU; take " in capsys.readouterr().err


def test_pyg_trains_as_well_or_says_what_is_missing(tmp_path, trained, capsys):
    typing = pytest.importorskip("torch_geometric.typing")
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        epochs = trained("--rung", "pyg", "--epochs", "3", runs=tmp_path)
        assert epochs[-1]["valid_accuracy"] > 0.75
        words = ["infer", "--graph", "tiny", "--fanout", "20", "20", "--json", "--threads", "1"]
        assert main([*words, "--checkpoint", str(tmp_path / "minibatch" / "tiny-sage.pt")]) == 0
        assert json.loads(capsys.readouterr().out)["sampled_accuracy"] > 0.75
    else:
        assert main(["epoch", *TINY, "--rung", "pyg", "--runs-dir", str(tmp_path)]) == 2
        assert "needs pyg-lib or torch-sparse beside torch-geometric" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "words",
    [
        ("--rung", "salient"),
        ("--rung", "salient", "--model", "gat"),
        ("--rung", "gpu-plain"),
        ("--rung", "gpu"),
        ("--rung", "gpu-fused"),
        ("--rung", "gpu-graph"),
        ("--rung", "gpu-layers"),
        ("--rung", "gpu", "--features", "host"),
        ("--rung", "gpu-graph", "--features", "host", "--cache-gib", str(1000 * 32 / 2**30)),
    ],
    ids=lambda words: "-".join(words).replace("--", ""),
)
def test_every_rung_of_a_gpu_learns_infers_and_reports(words, tmp_path, trained, capsys):
    if "--model" in words:
        pytest.importorskip("torch_geometric")
    report, kept = tmp_path / "report.html", tmp_path / "model.pt"
    looked = ["--audit"] if words[1].startswith("gpu") else []
    asked = [*words, *looked, "--epochs", "4", "--report", str(report), "--checkpoint", str(kept)]
    epochs = trained(*asked, runs=tmp_path)
    assert epochs[-1]["edges"] > 10_000
    assert epochs[-1]["valid_accuracy"] > 0.5
    assert "What ran when" in report.read_text()
    if "--cache-gib" in words:
        assert 0.2 < epochs[-1]["cache_hits"] < 1
    asked = ["infer", "--graph", "tiny", "--fanout", "20", "20", "--json", "--checkpoint", str(kept)]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sampled_accuracy"] == pytest.approx(found["full_accuracy"], abs=0.05)
    # One batch an epoch, fewer than are made before a capture; and a checkpoint of another rung.
    more = trained("--resume", "--checkpoint", str(kept), "--batch", "1024", "--epochs", "1", *words[2:], runs=tmp_path)
    assert more[0]["batches"] == 1


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
        ),
    ],
)
def test_epochs_are_compared_with_another_source_in_a_kernels_place(device, tmp_path, monkeypatch, capsys):
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = catalog.load("gather_mean").baseline(device, None)[1].read_text() + "\n// another\n"
    rung = "gpu-graph" if device == "cuda" else "gpu-fused"
    asked = parse(["epoch", *TINY, "--batch", "900", "--rung", rung, "--with", "run", "--runs-dir", str(tmp_path)])
    gain = commands.with_sources(asked, {"gather_mean": (device, text)})
    assert (gain.kernels, gain.graph, gain.rung) == (("gather_mean",), "tiny", rung)
    assert gain.accuracy == pytest.approx(gain.baseline_accuracy, abs=0.1)
    assert json.loads(capsys.readouterr().out)["edges"] == gain.edges > 10_000
    with pytest.raises(GraphError, match="the run's gather_mean is for device other"):
        commands.with_sources(asked, {"gather_mean": ("other", text)})


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
@pytest.mark.parametrize("rung", ["gpu-graph", "gpu-layers", "salient"])
def test_two_gpus_train_one_model_and_report(tmp_path, rung):
    words = ["epoch", *TINY, "--epochs", "4", "--gpus", "2", "--rung", rung, "--runs-dir", str(tmp_path)]
    words += ["--report", str(tmp_path / "report.html")]
    done = subprocess.run([sys.executable, "run.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    epochs = json.loads(done.stdout)["epochs"]
    assert epochs[0]["batches"] == 4
    assert epochs[-1]["valid_accuracy"] > 0.5
    assert (tmp_path / "report.html").exists()


def test_a_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04 not a checkpoint")
    with pytest.raises(GraphError, match="no checkpoint of ours .*; name one that"):
        training.load_checkpoint(tmp_path / "model.pt")
