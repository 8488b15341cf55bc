"""A graph's folder: whole or not there, and refused with one sentence where it does not fit together."""

import json

import numpy as np
import pytest
import torch

from minibatch import graphs, synthetic
from minibatch.graphs import Graph, GraphError


@pytest.fixture(scope="module")
def tiny() -> Graph:
    return synthetic.generate("tiny", seed=5)


@pytest.fixture
def folder(tiny, tmp_path):
    graphs.save(tiny, tmp_path / "tiny")
    return tmp_path / "tiny"


def test_what_was_written_is_read(tiny, folder):
    read = graphs.load(folder)
    assert read.classes == tiny.classes
    for name, values in tiny.arrays().items():
        assert torch.equal(read.arrays()[name], values)
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"], "something temporary was left"


def test_the_same_seed_gives_the_same_graph_and_another_seed_another(tiny):
    again, other = synthetic.generate("tiny", seed=5), synthetic.generate("tiny", seed=6)
    assert all(torch.equal(values, again.arrays()[name]) for name, values in tiny.arrays().items())
    assert not torch.equal(tiny.rowptr, other.rowptr)


def test_a_recipe_gives_what_it_says(tiny):
    recipe = synthetic.RECIPES["tiny"]
    degrees = (tiny.rowptr[1:] - tiny.rowptr[:-1]).float()
    assert int(degrees.min()) >= 1
    assert float(degrees.mean()) == pytest.approx(recipe.mean_degree, rel=0.1)
    owner = torch.repeat_interleave(torch.arange(tiny.nodes), degrees.long())
    inside = (owner // recipe.community == tiny.col // recipe.community).float().mean()
    share = recipe.inside + (1 - recipe.inside) * recipe.community / recipe.nodes
    assert float(inside) == pytest.approx(share, abs=0.02)
    ids = torch.cat([tiny.train, tiny.valid, tiny.test])
    assert len(ids.unique()) == len(ids) == recipe.train + recipe.valid + recipe.test


@pytest.mark.parametrize("name", ["col", "features", "rowptr"])
def test_a_file_that_is_cut_off_is_refused(folder, name):
    path = folder / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GraphError, match="damaged or cut off"):
        graphs.load(folder)


def test_a_folder_without_a_graph_is_refused(tmp_path):
    with pytest.raises(GraphError, match=r"no graph: it has no graph\.json"):
        graphs.load(tmp_path)


def test_neighbours_beyond_the_nodes_are_refused(tiny, folder, tmp_path):
    col = np.load(folder / "col.npy")
    col[7] = tiny.nodes
    np.save(folder / "col.npy", col)
    with pytest.raises(GraphError, match=f"neighbours reach from 0 to {tiny.nodes}, and it has {tiny.nodes} nodes"):
        graphs.load(folder)
    wrong = Graph(**(tiny.arrays() | {"col": torch.from_numpy(col)}), classes=tiny.classes)
    with pytest.raises(GraphError, match="neighbours reach"):
        graphs.save(wrong, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_decreasing_row_pointers_are_refused(tiny):
    rowptr = tiny.rowptr.clone()
    rowptr[3] = rowptr[2] - 1
    with pytest.raises(GraphError, match="row pointers decrease"):
        Graph(**(tiny.arrays() | {"rowptr": rowptr}), classes=tiny.classes).require_consistent()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"col": torch.zeros(3, dtype=torch.int64)}, "col must be int32, flat and contiguous; they are int64"),
        ({"labels": torch.zeros(3000)}, "labels must be int64"),
        ({"labels": torch.full((3000,), 6)}, "labels must lie between 0 and 5"),
        ({"features": torch.zeros(3000)}, r"features must be .* \[nodes, width\]"),
        ({"features": torch.zeros(3000, 8).t()}, "contiguous"),
        ({"features": torch.zeros(7, 8)}, "3000 nodes and features for 7"),
        ({"train": torch.tensor([3000])}, "train ids reach from 3000"),
    ],
)
def test_arrays_that_a_sampler_would_misread_are_refused(tiny, changed, says):
    with pytest.raises(GraphError, match=says):
        Graph(**(tiny.arrays() | changed), classes=tiny.classes).require_consistent()


def test_counts_that_do_not_agree_are_refused(folder):
    meta = json.loads((folder / "graph.json").read_text())
    (folder / "graph.json").write_text(json.dumps(meta | {"edges": 7}))
    with pytest.raises(GraphError, match="says version, nodes, edges"):
        graphs.load(folder)


def test_nothing_is_written_over_a_folder_that_is_there(tiny, folder):
    with pytest.raises(GraphError, match="there already"):
        graphs.save(tiny, folder)
