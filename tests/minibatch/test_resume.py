"""Checkpoints: a resumed run is the run, the best is kept, another graph's is refused; schedules, early ends, other losses."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from minibatch import commands, graphs, models, objectives, options, rungs, synthetic, training
from minibatch.graphs import Graph, GraphError, from_coo
from minibatch.request import InferRequest
from minibatch.resident import Trainer
from run import main
from tests import forked

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--fanout", "4", "3", "--batch", "64", "--threads", "1", "--json")
NODES = 300


def graph_of(**changed) -> Graph:
    torch.manual_seed(0)
    labels = torch.arange(NODES) % 3
    source = torch.randint(NODES, (3000,))
    target = (source + 3 * torch.randint(NODES // 3, (3000,))) % NODES  # neighbours share labels
    x = torch.nn.functional.one_hot(labels, 3) + torch.randn(NODES, 3)
    ids = torch.arange(NODES).split([150, 75, 75])
    given = {"labels": labels, "train": ids[0], "valid": ids[1], "test": ids[2], "classes": 3} | changed
    return from_coo(source, target, given.pop("features", x), given.pop("labels"), **given)


@pytest.fixture
def folder(tmp_path):
    graphs.save(graph_of(), tmp_path / "graphs" / "mine")
    return tmp_path / "graphs" / "mine"


@pytest.fixture
def run(capsys, tmp_path):
    """run(command, *words): (exit code, record, standard error)."""

    def go(command: str, *words: object) -> tuple[int, dict, str]:
        code = main([command, *map(str, words), "--runs-dir", str(tmp_path / "runs")])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else {}, said.err

    return go


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(one["model"][name], values) for name, values in other["model"].items())


@pytest.mark.parametrize(
    "options",
    [
        ("--rung", "salient"),
        ("--rung", "gpu-fused"),
        ("--model", "gin"),
        ("--model", "sage-ri", "--schedule", "cosine"),
        ("--schedule", "plateau", "--lr", "0.02"),
    ],
    ids="-".join,
)
def test_a_resumed_run_ends_in_the_same_weights_bit_for_bit(folder, run, tmp_path, options):
    words = ("--graph", folder, *SMALL, *options)
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    # A cosine's end is that of the whole run, whatever part of it is made at once.
    assert run("epoch", *words, "--epochs", "4", "--checkpoint", whole)[0] == 0
    first = ("--epochs", "4") if "cosine" in options else ("--epochs", "2")
    if "cosine" in options:
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, 2)
            assert run("epoch", *words, *first, "--checkpoint", parts)[0] == 2
    else:
        assert run("epoch", *words, *first, "--checkpoint", parts)[0] == 0
    rest = () if "gpu-fused" not in options else ("--rung", "gpu-fused")
    code, record, said = run(
        "epoch",
        "--graph",
        folder,
        "--json",
        "--threads",
        "1",
        *rest,
        "--resume",
        "--epochs",
        "2",
        "--checkpoint",
        parts,
    )
    assert code == 0, said
    assert [epoch["number"] for epoch in record["epochs"]] == [2, 3]
    one, other = training.load_checkpoint(whole), training.load_checkpoint(parts)
    assert same(one, other)
    assert one["options"] == other["options"]


def stop_after(patch: pytest.MonkeyPatch, epochs: int) -> None:
    """An epoch after so many fails, as one that is killed leaves its checkpoint."""
    order = training.order

    def counted(graph, seed, number, *more):
        if number == epochs:
            raise GraphError("stopped")
        return order(graph, seed, number, *more)

    patch.setattr(training, "order", counted)


def test_two_folders_of_one_name_have_two_checkpoints_and_none_takes_the_others(folder, run, tmp_path):
    other = tmp_path / "more" / "mine"
    graphs.save(graph_of(labels=(torch.arange(NODES) + 1) % 3), other)
    for graph in (folder, other):
        assert run("epoch", "--graph", graph, *SMALL, "--epochs", "1")[0] == 0
    kept = [path for path in (tmp_path / "runs" / "minibatch").iterdir() if ".best" not in path.name]
    assert len(kept) == 2
    for command in ("infer", "epoch"):
        more = ("--resume",) if command == "epoch" else ()
        code, _, said = run(
            command,
            "--graph",
            other,
            *SMALL,
            *more,
            "--checkpoint",
            next(p for p in kept if training.load_checkpoint(p)["graph"] == str(folder)),
        )
        assert code == 2
        assert "was trained on another graph" in said


def test_a_changed_graph_in_the_same_folder_is_another(folder, run):
    assert run("epoch", "--graph", folder, *SMALL, "--epochs", "1")[0] == 0
    np.save(folder / "labels.npy", (np.load(folder / "labels.npy") + 1) % 3)
    assert "another graph" in run("infer", "--graph", folder, "--json")[2]


def test_options_that_are_given_count_and_those_that_are_not_are_the_checkpoints(folder, run, tmp_path):
    kept = tmp_path / "model.pt"
    words = ("--graph", folder, "--json", "--checkpoint", kept)
    assert run("epoch", *words, *SMALL, "--epochs", "1", "--lr", "0.01", "--hidden", "16", "--seed", "3")[0] == 0
    assert run("epoch", *words, "--resume", "--epochs", "1")[0] == 0
    held = training.load_checkpoint(kept)["options"]
    assert {name: held[name] for name in ("lr", "hidden", "seed", "fanout", "batch")} == {
        "lr": 0.01,
        "hidden": 16,
        "seed": 3,
        "fanout": [4, 3],
        "batch": 64,
    }
    code, record, _ = run("epoch", *words, "--resume", "--epochs", "1", "--lr", "0.5")
    assert (code, record["epochs"][0]["lr"]) == (0, 0.5)
    for command, more, says in (
        ("epoch", ("--resume", "--hidden", "32"), "the checkpoint's --hidden is 16, and 32 was given"),
        ("infer", ("--hidden", "32"), "the checkpoint's --hidden is 16"),
        ("epoch", ("--resume", "--model", "gin"), "the checkpoint's --model is sage"),
        ("infer", ("--fanout", "5"), "the model has 2 layers, and --fanout names 1"),
    ):
        code, _, said = run(command, *words, *more)
        assert (code, len(said.strip().splitlines())) == (2, 1)
        assert says in " ".join(said.split())


def test_the_best_checkpoint_is_kept_beside_the_last(folder, run, tmp_path):
    kept = tmp_path / "model.pt"
    words = ("--graph", folder, *SMALL, "--checkpoint", kept)
    values = iter([0.5, 0.9, 0.4, 0.3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands.rungs.Route, "accuracy", lambda *_: next(values))
        code, record, _ = run("epoch", *words, "--epochs", "9", "--patience", "2")
    assert (code, len(record["epochs"])) == (0, 4)
    best = training.load_checkpoint(commands.best_path(kept))
    assert (best["epoch"], best["valid"], training.load_checkpoint(kept)["epoch"]) == (1, 0.9, 3)
    assert run("infer", "--graph", folder, "--json", "--checkpoint", commands.best_path(kept))[0] == 0


def test_ranks_end_when_the_process_that_started_them_is_killed(tmp_path):
    words = ["epoch", "--graph", "tiny", "--fanout", "5", "5", "--batch", "32", "--epochs", "2000", "--ranks", "2"]
    code = "import run, sys; sys.argv[0] = 'run.py'; sys.exit(run.main(sys.argv[1:]))"
    checkpoint = tmp_path / "minibatch" / "tiny-sage.pt"
    with forked.Program(
        code, *words, "--runs-dir", tmp_path, environment=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ) as parent:
        until = time.monotonic() + 120
        while not checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.05)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) == 2
        os.kill(parent.pid, signal.SIGKILL)
        until = time.monotonic() + 20
        while any(alive(child) for child in children) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(alive(child) for child in children)


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_kept_library_that_is_cut_off_is_built_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path))
    source = 'extern "C" int seven() { return 7; }'
    code = f"from minibatch import native; print(native.library({source!r}, 'cpu').seven())"
    assert forked.run(code).returncode == 0
    (kept,) = (tmp_path / "native").glob("*.so")
    kept.write_bytes(kept.read_bytes()[:4000])
    done = forked.run(code)
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr


@pytest.mark.parametrize(
    ("changed", "words", "says"),
    [
        ({"train": []}, (), "the graph has no train ids"),
        ({"valid": []}, ("--patience", "2"), "look at valid ids, and the graph has none"),
        ({"labels": torch.where(torch.arange(NODES) == 7, -1, 0)}, (), "1 of the graph's train ids have no label"),
        ({}, ("--lr", "1e30"), "the loss of epoch"),
        ({}, ("--seed", str(10**20)), "is more than"),
        ({}, ("--batch", str(10**12)), "is more than"),
        ({}, ("--threads", "100000"), "is more than"),
        ({}, ("--fanout", str(10**10)), "more neighbours than a graph here has nodes"),
        ({}, ("--fanout", str(10**8), str(10**8)), "are free: take a smaller batch"),
        ({}, ("--lr", "nan"), "is not a number"),
        ({}, ("--loss", "regression"), "needs labels of float32"),
        ({"features": torch.zeros(NODES, 0)}, (), "features have no columns"),
        ({}, ("--model", "nope.py:Net"), "there is no file nope.py"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_with_one_sentence_and_leaves_no_checkpoint(
    changed, words, says, run, tmp_path
):
    graphs.save(graph_of(**changed), tmp_path / "graph")
    try:
        code, record, said = run("epoch", "--graph", tmp_path / "graph", *SMALL, "--epochs", "2", *words)
    except SystemExit as end:
        code, record, said = end.code, {}, None
    assert (code, record) == (2, {})
    if said is not None:
        assert says in " ".join(said.split())
        assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_graph_without_valid_or_test_ids_is_trained_on(split, run, tmp_path):
    graphs.save(graph_of(**{split: []}), tmp_path / "graph")
    words = ("--graph", tmp_path / "graph")
    code, record, _ = run("epoch", *words, *SMALL, "--epochs", "1")
    assert code == 0
    assert (record["epochs"][0]["valid_accuracy"] is None) == (split == "valid")
    code, _, said = run("infer", *words, "--json")
    assert (code, "the graph has no test ids" in said) == ((0, False) if split == "valid" else (2, True))
    assert split == "valid" or "--on" in said


def test_features_that_are_no_numbers_are_refused_when_a_folder_is_opened(folder):
    features = np.load(folder / "features.npy")
    features[7, 1] = np.nan
    np.save(folder / "features.npy", features)
    meta = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps({k: v for k, v in meta.items() if k != "finite"}))
    with pytest.raises(GraphError, match="features of node 7 are not all finite"):
        graphs.load(folder)


@pytest.mark.parametrize(
    "junk",
    [
        [1, 2],
        {},
        torch.zeros(3),
        {"version": 2},
        {
            "version": 2,
            "options": {},
            "identity": 3,
            "graph": "",
            "model": {},
            "optimizer": {},
            "schedule": {},
            "epoch": 0,
        },
        "text",
    ],
    ids=str,
)
def test_junk_is_no_checkpoint(junk, tmp_path, folder, run):
    torch.save(junk, tmp_path / "junk.pt")
    for command in (("epoch", "--resume"), ("infer",)):
        code, _, said = run(*command, "--graph", folder, "--json", "--checkpoint", tmp_path / "junk.pt")
        assert code == 2
        assert "no checkpoint of ours" in " ".join(said.split())
        assert len(said.strip().splitlines()) == 1


def test_a_checkpoint_whose_weights_or_moments_are_another_models_is_refused(folder, run, tmp_path):
    kept = tmp_path / "model.pt"
    assert run("epoch", "--graph", folder, *SMALL, "--epochs", "1", "--checkpoint", kept)[0] == 0
    state = torch.load(kept, weights_only=True)
    for changed in ({"model": {}}, {"optimizer": {}}, {"optimizer": state["optimizer"] | {"param_groups": []}}):
        torch.save(state | changed, tmp_path / "other.pt")
        code, _, said = run("epoch", "--graph", folder, "--json", "--resume", "--checkpoint", tmp_path / "other.pt")
        assert (code, len(said.strip().splitlines())) == (2, 1), said


@pytest.mark.parametrize("kind", ["gat", "own"])
def test_full_inference_takes_what_its_guard_counts(kind, tmp_path):
    """In a process of its own: the growth of its peak, over a graph whose layers are larger than all else."""
    (tmp_path / "mine.py").write_text(OWN)
    name = f"{tmp_path / 'mine.py'}:Net" if kind == "own" else kind
    done = forked.run(PEAK, name)
    assert done.returncode == 0, done.stderr
    took, counted = map(int, done.stdout.split())
    assert took < 1.15 * counted + (16 << 20)
    assert counted < 6 * took + (150 << 20)


PEAK = """
import pathlib, sys, torch
from dataclasses import replace
from minibatch import models, synthetic, training
def peak():  # of this process alone: getrusage's goes on from the parent's
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
training.FULL_BYTES //= 4  # and a quarter of the nodes: a quarter of the time, the same pieces
small = synthetic.RECIPES["small"]
synthetic.RECIPES["small"] = replace(small, nodes=15_000, train=3_000, valid=1_000, test=2_000)
graph, tiny = synthetic.generate("small"), synthetic.generate("tiny")
torch.manual_seed(0)
model = models.make(sys.argv[1], graph.features.shape[1], 256, graph.classes, 2)
warm = type(tiny)(**(tiny.arrays() | {"features": torch.zeros(3000, 64).half()}), classes=20)
training.full_outputs(model, warm, torch.arange(5))
before = peak()
training.full_outputs(model, graph, graph.test)
print(peak() - before, training.full_bytes(model, graph))
"""

OWN = """
import torch
from torch_geometric.nn import SAGEConv
class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.one, self.two = SAGEConv(in_channels, hidden_channels), SAGEConv(hidden_channels, out_channels)
    def forward(self, x, edge_index):
        return self.two(self.one(x, edge_index).relu(), edge_index)
class Wrong(Net):
    def forward(self, x, edge_index):
        return x[:3]
class Needy(torch.nn.Module):
    def __init__(self, something):
        super().__init__()
"""


def test_a_model_of_ones_own_trains_resumes_and_infers_from_sampled_and_all_neighbours(folder, run, tmp_path):
    (tmp_path / "my.py").write_text(OWN)
    words = ("--graph", folder, "--model", f"{tmp_path / 'my.py'}:Net")
    assert run("epoch", *words, *SMALL, "--epochs", "6", "--lr", "0.03")[0] == 0
    assert run("epoch", *words, "--json", "--resume", "--epochs", "1")[0] == 0
    code, record, said = run("infer", *words, "--fanout", "90", "90", "--json")
    assert code == 0, said
    assert record["sampled_accuracy"] == pytest.approx(record["full_accuracy"], abs=0.02)
    assert record["full_accuracy"] > 0.7
    for name, says in (("Wrong", "must give a row a node"), ("Needy", "cannot be made"), ("Nothing", "cannot be made")):
        code, _, said = run("epoch", "--graph", folder, *SMALL, "--model", f"{tmp_path / 'my.py'}:{name}")
        assert code == 2
        assert says in " ".join(said.split())


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_predictions_are_written(folder, run, tmp_path, suffix):
    assert run("epoch", "--graph", folder, *SMALL, "--epochs", "3", "--lr", "0.03")[0] == 0
    out = tmp_path / f"predictions.{suffix}"
    code, record, _ = run("infer", "--graph", folder, "--json", "--out", out, "--on", "all")
    assert code == 0
    if suffix == "npz":
        ids, found = np.load(out)["ids"], np.load(out)["predictions"]
    else:
        ids, found = np.loadtxt(out, delimiter=",", skiprows=1, dtype=int).T
    assert ids.tolist() == list(range(NODES))
    assert float((found == np.arange(NODES) % 3).mean()) == pytest.approx(record["sampled_accuracy"])
    assert run("infer", "--graph", folder, "--out", tmp_path / "predictions.txt")[0] == 2


@pytest.mark.parametrize("rung", ["salient", "gpu-fused"])
@pytest.mark.parametrize("kind", ["multi-label", "regression"])
def test_several_labels_a_node_and_numbers_are_learnt(kind, rung, run, tmp_path):
    held = torch.arange(NODES) % 3
    labels = torch.stack([held == 0, held != 1], dim=1).float() if kind == "multi-label" else held[:, None] * 0.7 - 1
    labels[290] = torch.nan  # a test node without one
    graphs.save(graph_of(labels=labels, classes=labels.shape[1]), tmp_path / "graph")
    words = ("--graph", tmp_path / "graph")
    code, record, said = run("epoch", *words, *SMALL, "--rung", rung, "--epochs", "30", "--lr", "0.03")
    assert code == 0, said
    metric = {"multi-label": "micro_f1", "regression": "rmse"}[kind]
    value = record["epochs"][-1][f"valid_{metric}"]
    assert value > 0.9 if kind == "multi-label" else value < 0.3
    code, record, _ = run("infer", *words, "--json", "--out", tmp_path / "out.npz")
    assert code == 0
    assert record[f"full_{metric}"] == pytest.approx(value, abs=0.15)
    assert np.load(tmp_path / "out.npz")["predictions"].shape == (75, labels.shape[1])


def test_metrics_are_what_they_are_called():
    logits, labels = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor([[1.0, 1.0], [0.0, torch.nan]])
    assert objectives.Objective("multi-label").metric_of([(logits, labels)]) == pytest.approx(2 * 1 / (2 + 2))
    assert objectives.Objective("regression").metric_of([(logits, labels)]) == pytest.approx(
        ((1 + 4 + 0.25) / 3) ** 0.5
    )
    assert objectives.Objective("classes").metric_of([(logits, torch.tensor([0, -1]))]) == 1
    assert objectives.Objective("classes").metric_of([(logits, torch.tensor([-1, -1]))]) is None
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits.flatten()[:3], labels.flatten()[:3])
    torch.testing.assert_close(objectives.Objective("multi-label").loss(logits, labels), each)


def test_an_import_that_fails_within_a_package_says_what_failed(tmp_path, monkeypatch):
    from minibatch import benchmark_graphs

    (tmp_path / "ogb").mkdir()
    (tmp_path / "ogb" / "__init__.py").write_text("import a_thing_that_is_missing")
    for name in [name for name in sys.modules if name.split(".")[0] == "ogb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(GraphError, match="cannot be imported .No module named 'a_thing_that_is_missing'"):
        benchmark_graphs._reader("ogbn-arxiv")


@pytest.mark.parametrize("kind", models.NAMES)
def test_a_model_is_the_same_whoever_makes_its_layers(kind):
    """Padded ids and edges give the same logits; so any rung's checkpoint is any other's."""
    torch.manual_seed(0)
    graph = synthetic.generate("tiny", seed=1)
    model = models.make(kind, graph.features.shape[1], 16, graph.classes, 2).eval()
    from minibatch.batches import BatchLoader

    with BatchLoader(graph, [5, 5], 64, threads=1) as loader:
        batch = next(loader.epoch(graph.train))
    layers = batch.hops[::-1]
    with torch.no_grad():
        padded, edges = model(layers, batch.x.float()), model([models.edges_of(ids) for ids in layers], batch.x.float())
    torch.testing.assert_close(padded, edges)


def test_salients_models_are_salients():
    """Their parts, as its driver/models.py has them (three layers of 256)."""
    gat, gin, ri = (models.make(kind, 128, 256, 172, 3) for kind in ("gat", "gin", "sage-ri"))
    shapes = lambda model: sorted(tuple(p.shape) for p in model.parameters())  # noqa: E731
    assert shapes(gat) == sorted([(256, 128), (256, 256), (172, 256), *[(1, 1, 256)] * 4, *[(1, 1, 172)] * 2])
    assert shapes(gin) == sorted(
        [(256, 128), *[(256, 256)] * 5, *[(256,)] * 12, (256, 256), (256,), (172, 256), (172,)]
    )
    seen = 128 + 3 * 256
    assert shapes(ri) == sorted(
        [(256, 128)] * 3 + [(256, 256)] * 4 + [(256,)] * 7 + [(344, seen), (344,), (172, 344), (172,)]
    )
    h, edges = torch.randn(5, 128), models.Edges(torch.tensor([1, 0]), torch.tensor([0, 1]), torch.arange(2))
    assert edges.with_self_loops().tolist() == [[1, 0, 0, 1], [0, 1, 0, 1]]
    assert gat.layer(0, h, edges).shape == (2, 256)


def test_what_loads_a_gpus_libraries_beside_the_graph_infers_with_the_checkpoints_model(
    folder, run, tmp_path, monkeypatch
):
    kept = tmp_path / "model.pt"
    assert run("epoch", "--graph", folder, *SMALL, "--epochs", "1", "--checkpoint", kept)[0] == 0
    monkeypatch.setattr(rungs, "inferring", lambda _model, _device: "gpu-layers")
    monkeypatch.setattr(rungs, "REHEARSED", 500)
    ran = []
    monkeypatch.setattr(Trainer, "accuracy", lambda self, ids, fanouts: ran.append(list(self.outputs(ids, fanouts))))
    asked = InferRequest(graph=str(folder), checkpoint=kept)
    state = training.load_checkpoint(kept)
    with rungs.loading_libraries(options.resolve_inference(asked, state), state, "cpu"):
        pass
    assert [len(torch.cat([logits for logits, _ in outputs])) for outputs in ran] == [500]
