"""OGB's data sets, read by OGB's own package out of small folders in its form; nothing is downloaded."""

import gzip

import numpy as np
import pytest
import torch

from minibatch import benchmark_graphs
from minibatch.benchmark_graphs import symmetrise
from minibatch.graphs import GraphError
from run import main

NODES = 40


def brute_force(edges: np.ndarray, nodes: int) -> list[list[int]]:
    found: list[set[int]] = [set() for _ in range(nodes)]
    for a, b in edges.T.tolist():
        found[a].add(b)
        found[b].add(a)
    return [sorted(some) for some in found]


def rows_of(rowptr: torch.Tensor, col: torch.Tensor) -> list[list[int]]:
    return [part.tolist() for part in col.split((rowptr[1:] - rowptr[:-1]).tolist())]


@pytest.mark.parametrize("at_once", [1, 7, 50, 10_000])
def test_both_directions_once_in_pieces_of_any_size(at_once):
    # Edges that are there twice, in both directions, and from a node to itself; nodes without any; one with many.
    edges = np.random.default_rng(0).integers(0, NODES - 5, (2, 200))
    edges = np.concatenate([edges, edges[:, :50], edges[::-1, :50], [[3, 9], [3, 9]], [[7] * 20, range(20)]], axis=1)
    rowptr, col = symmetrise(torch.from_numpy(edges), NODES, at_once)
    assert rows_of(rowptr, col) == brute_force(edges, NODES)
    assert (rowptr.dtype, col.dtype) == (torch.int64, torch.int32)


def test_edges_beyond_the_nodes_are_refused():
    with pytest.raises(GraphError, match="name nodes 0 to 9, and there are 5"):
        symmetrise(torch.tensor([[0, 9], [1, 2]]), 5)


def test_a_graph_without_edges_has_none():
    rowptr, col = symmetrise(torch.empty(2, 0, dtype=torch.int64), 3)
    assert (rowptr.tolist(), col.tolist()) == ([0, 0, 0, 0], [])


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    ids = rng.permutation(NODES)
    return {
        "edges": rng.integers(0, NODES, (2, 150)),
        "features": rng.normal(size=(NODES, 6)).astype(np.float32),
        "labels": rng.integers(0, 40, (NODES, 1)),
        "train": ids[:20],
        "valid": ids[20:30],
        "test": ids[30:],
    }


def write(path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, values, fmt="%s", delimiter=",")


def arxiv(root, drawn) -> None:
    """The form of ogbn-arxiv: tables of text, an id a line in the split by time."""
    folder = root / "ogbn_arxiv"
    write(folder / "raw" / "edge.csv.gz", drawn["edges"].T)
    write(folder / "raw" / "node-feat.csv.gz", drawn["features"])
    write(folder / "raw" / "node-label.csv.gz", drawn["labels"])
    write(folder / "raw" / "node_year.csv.gz", np.full((NODES, 1), 2018))
    write(folder / "raw" / "num-node-list.csv.gz", np.array([[NODES]]))
    write(folder / "raw" / "num-edge-list.csv.gz", np.array([[150]]))
    for part in ("train", "valid", "test"):
        write(folder / "split" / "time" / f"{part}.csv.gz", drawn[part][:, None])
    (folder / "RELEASE_v1.txt").touch()
    (folder / "processed").mkdir()


def papers(root, drawn) -> None:
    """The form of ogbn-papers100M: arrays in archives, labels of most nodes unknown, the split as a pickle of arrays."""
    folder = root / "ogbn_papers100M"
    (folder / "raw").mkdir(parents=True)
    np.savez(
        folder / "raw" / "data.npz", edge_index=drawn["edges"], node_feat=drawn["features"],
        num_nodes_list=np.array([NODES]), num_edges_list=np.array([150]),
    )  # fmt: skip
    labels = drawn["labels"].astype(np.float32)
    labels[drawn["test"][5:]] = np.nan
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    (folder / "split" / "time").mkdir(parents=True)
    torch.save({part: drawn[part] for part in ("train", "valid", "test")}, folder / "split" / "time" / "split_dict.pt")
    (folder / "RELEASE_v1.txt").touch()
    (folder / "processed").mkdir()


@pytest.mark.parametrize(("name", "make"), [("ogbn-arxiv", arxiv), ("ogbn-papers100M", papers)])
def test_a_data_set_of_ogb_is_read_symmetrised(tmp_path, drawn, name, make):
    pytest.importorskip("ogb")
    make(tmp_path, drawn)
    graph = benchmark_graphs.load(name, tmp_path)
    graph.require_consistent()
    assert rows_of(graph.rowptr, graph.col) == brute_force(drawn["edges"], NODES)
    assert torch.equal(graph.features, torch.from_numpy(drawn["features"]).half())
    for part in ("train", "valid", "test"):
        assert getattr(graph, part).tolist() == drawn[part].tolist()
    labelled = drawn["test"][:5] if make is papers else drawn["test"]
    assert graph.labels[labelled].tolist() == drawn["labels"][labelled, 0].tolist()
    assert graph.classes == {"ogbn-arxiv": 40, "ogbn-papers100M": 172}[name]


def test_the_command_trains_on_it_and_keeps_it(tmp_path, drawn, capsys, monkeypatch):
    pytest.importorskip("ogb")
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))
    arxiv(tmp_path / "data", drawn)
    words = ["epoch", "--graph", "ogbn-arxiv", "--data", str(tmp_path / "data"), "--epochs", "1", "--fanout", "3"]
    for _ in range(2):
        assert main([*words, "--threads", "1", "--json", "--runs-dir", str(tmp_path / "runs")]) == 0
        said = capsys.readouterr().out
        assert said.startswith("{"), "OGB printed into the record"
        (tmp_path / "data").rename(tmp_path / "gone") if (tmp_path / "data").exists() else None


def test_a_damaged_data_set_is_refused_with_one_sentence(tmp_path, drawn, capsys):
    pytest.importorskip("ogb")
    arxiv(tmp_path, drawn)
    path = tmp_path / "ogbn_arxiv" / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:-40])
    assert main(["epoch", "--graph", "ogbn-arxiv", "--data", str(tmp_path), "--runs-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "is damaged or cut off" in said[-1]
    assert "remove it" in said[-1]


def test_one_that_cannot_be_had_is_refused_with_one_sentence(tmp_path, monkeypatch):
    dataset = pytest.importorskip("ogb.nodeproppred.dataset")

    def no_network(_url):
        raise OSError("no network")

    monkeypatch.setattr(dataset, "decide_download", no_network)
    with pytest.raises(GraphError, match=r"was not downloaded \(OSError: no network\); bring it there as"):
        benchmark_graphs.load("ogbn-arxiv", tmp_path)
    assert not list(tmp_path.iterdir())
