"""Graphs that DGL, GraphBolt and OGB keep, under any name."""

import gzip
import types

import numpy as np
import pytest
import torch

from minibatch import folders, from_dgl, from_graphbolt, from_ogb
from minibatch.graphs import Graph, GraphError

NODES = 50


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    ids = rng.permutation(NODES)
    return {
        "edges": rng.integers(0, NODES, (2, 240)), "features": rng.normal(size=(NODES, 5)).astype(np.float32),
        "labels": rng.integers(0, 4, NODES), "train": ids[:30], "valid": ids[30:40], "test": ids[40:],
    }  # fmt: skip


def ogb(folder, held, binary: bool) -> None:
    split = folder / "split" / "by_hand"
    for made in (folder / "raw", split):
        made.mkdir(parents=True)

    def csv(path, values) -> None:
        with gzip.open(path, "wt") as file:
            np.savetxt(file, values, delimiter=",", fmt="%.9g")

    if binary:
        np.savez(
            folder / "raw" / "data.npz",
            edge_index=held["edges"],
            node_feat=held["features"],
            num_nodes_list=np.array([NODES]),
        )
        np.savez(folder / "raw" / "node-label.npz", node_label=held["labels"][:, None])
        torch.save({name: torch.from_numpy(held[name]) for name in ("train", "valid", "test")}, split / "split_dict.pt")
        return
    csv(folder / "raw" / "edge.csv.gz", held["edges"].T)
    csv(folder / "raw" / "node-feat.csv.gz", held["features"])
    csv(folder / "raw" / "node-label.csv.gz", held["labels"])
    csv(folder / "raw" / "num-node-list.csv.gz", [NODES])
    for name in ("train", "valid", "test"):
        csv(split / f"{name}.csv.gz", held[name])


def graphbolt(folder, held) -> None:
    folder.mkdir()
    np.save(folder / "feat.npy", held["features"])
    np.savetxt(folder / "edges.csv", held["edges"].T, delimiter=",", fmt="%d")
    sets = []
    for name, theirs in folders.GRAPHBOLT_SPLITS.items():
        np.save(folder / f"{name}.npy", held[name])
        torch.save(torch.from_numpy(held["labels"][held[name]]), folder / f"{name}-labels.pt")
        sets.append(f"    {theirs}:\n      - data:\n          - {{name: seeds, format: numpy, path: {name}.npy}}\n")
        sets[-1] += f"          - {{name: labels, format: torch, path: {name}-labels.pt}}\n"
    text = f"dataset_name: mine\ngraph:\n  nodes: [{{num: {NODES}}}]\n  edges: [{{format: csv, path: edges.csv}}]\n"
    text += "feature_data:\n  - {domain: node, name: feat, format: numpy, path: feat.npy}\n"
    (folder / "metadata.yaml").write_text(
        text + "tasks:\n  - name: node_classification\n    num_classes: 4\n" + "".join(sets)
    )


def check(graph: Graph, held: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(graph.features.numpy(), held["features"], rtol=1e-6)
    assert graph.labels.tolist() == held["labels"].tolist()
    for name in ("train", "valid", "test"):
        assert getattr(graph, name).tolist() == held[name].tolist()


def in_neighbours(graph: Graph) -> list[list[int]]:
    return [sorted(part.tolist()) for part in graph.col.split((graph.rowptr[1:] - graph.rowptr[:-1]).tolist())]


def pointing_at(edges: np.ndarray) -> list[list[int]]:
    return [sorted(edges[0][edges[1] == node].tolist()) for node in range(NODES)]


@pytest.mark.parametrize("binary", [False, True])
def test_a_folder_of_ogbs_form_under_a_name_of_its_own(tmp_path, binary):
    held = drawn()
    ogb(tmp_path / "my_own", held, binary)
    graph = from_ogb(tmp_path / "my_own", both_ways=False)
    check(graph, held)
    assert in_neighbours(graph) == pointing_at(held["edges"])
    both = from_ogb(tmp_path / "my_own")
    wanted = pointing_at(np.concatenate([held["edges"], held["edges"][::-1]], axis=1))
    assert in_neighbours(both) == [sorted(set(row)) for row in wanted]


def test_a_folder_of_graphbolts(tmp_path):
    held = drawn()
    graphbolt(tmp_path / "mine", held)
    graph = from_graphbolt(tmp_path / "mine")
    check(graph, held)
    assert in_neighbours(graph) == pointing_at(held["edges"])


def test_a_graph_of_dgls():
    held = {name: torch.from_numpy(values) for name, values in drawn().items()}
    masks = {
        f"{short}_mask": torch.zeros(NODES, dtype=torch.bool).index_fill(0, held[name], True)
        for name, short in (("train", "train"), ("valid", "val"), ("test", "test"))
    }
    graph = types.SimpleNamespace(
        ntypes=["_N"], canonical_etypes=[("_N", "_E", "_N")], num_nodes=lambda: NODES, edges=lambda order: tuple(held["edges"]),
        ndata={"feat": held["features"], "label": held["labels"]} | masks, edata={"w": torch.arange(240).float()},
    )  # fmt: skip
    made = from_dgl(graph, edge_weights="w")
    assert in_neighbours(made) == pointing_at(held["edges"].numpy())
    assert made.train.tolist() == sorted(held["train"].tolist())
    assert torch.equal(made.edge_weights, made.edge_ids.float())
    with pytest.raises(GraphError, match="the graph's edata has no age"):
        from_dgl(graph, edge_weights="age")
    del graph.ndata["feat"]
    with pytest.raises(GraphError, match="ndata has no feat or x"):
        from_dgl(graph)


@pytest.mark.parametrize("form", ["ogb", "graphbolt"])
def test_both_are_trained_on_as_they_are_and_refused_in_one_sentence_where_they_are_damaged(
    form, tmp_path, monkeypatch, capsys
):
    from run import main

    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    if form == "ogb":
        ogb(folder, drawn(), False)
    else:
        graphbolt(folder, drawn())
    words = ["epoch", "--graph", "mine", "--fanout", "3", "--epochs", "1", "--json", "--runs-dir", str(tmp_path)]
    assert main(words) == 0
    assert '"valid_accuracy"' in capsys.readouterr().out
    victim = folder / ("raw/edge.csv.gz" if form == "ogb" else "edges.csv")
    victim.write_bytes(victim.read_bytes()[:25])
    assert main(words) != 0
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "mine" in said[0], said
