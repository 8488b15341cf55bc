"""A loader in PyTorch Geometric's place: its batches are sub-graphs of the data, and its models take them as they are."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GAT, GraphSAGE

from minibatch import NeighborLoader
from minibatch.graphs import GraphError

NODES, EDGES = 201, 1500


@pytest.fixture
def data() -> Data:
    torch.manual_seed(0)
    y = torch.arange(NODES) % 3
    source = torch.randint(NODES, (EDGES,))
    target = (source + 3 * torch.randint(NODES // 3, (EDGES,))) % NODES
    x = torch.nn.functional.one_hot(y, 3) + torch.randn(NODES, 3)
    return Data(
        x=x, y=y, edge_index=torch.stack([source, target]), edge_attr=torch.arange(EDGES), name=["a"],
        train_mask=torch.arange(NODES) < 120, weight=torch.rand(EDGES), long=torch.arange(NODES)[:, None].expand(-1, 2).contiguous(),
    )  # fmt: skip


def check(batch: Data, data: Data) -> None:
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.y, data.y[batch.n_id])
    assert torch.equal(batch.long, data.long[batch.n_id])
    assert torch.equal(batch.edge_attr, batch.e_id)
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert batch.num_nodes == len(batch.n_id)
    assert batch.name == ["a"]


def test_attributes_are_those_that_the_loaders_data_has_when_it_is_iterated(data):
    import copy

    loader = NeighborLoader(copy.copy(data), [-1], batch_size=50)
    del loader.data.x, loader.data.y
    loader.data.num_nodes, loader.data.n_id, loader.data.mine = NODES, torch.arange(NODES), torch.arange(NODES)
    batch = next(iter(loader))
    assert "x" not in batch and "y" not in batch and torch.equal(batch.mine, batch.n_id)
    loader.data.x = 2 * data.x
    batch = next(iter(loader))
    assert torch.equal(batch.x, 2 * data.x[batch.n_id])


def test_older_and_rarer_arguments_mean_what_they_mean_there(data):
    every = next(iter(NeighborLoader(data, [3], batch_size=50, directed=False)))
    assert set(every.e_id.tolist()) == set(
        torch.nonzero(torch.isin(data.edge_index, every.n_id).all(dim=0)).flatten().tolist()
    )
    named = NeighborLoader(data, [3], torch.arange(20), input_id=torch.arange(20) + 7, batch_size=10)
    assert torch.cat([batch.input_id for batch in named]).tolist() == list(range(7, 27))
    with pytest.raises(GraphError, match="there are 3 of input_id for 20 input nodes"):
        NeighborLoader(data, [3], torch.arange(20), input_id=torch.arange(3))


def test_a_sampler_decides_which_seeds_come(data):
    from torch.utils.data import DistributedSampler
    from torch_geometric.loader import ImbalancedSampler

    loader = NeighborLoader(data, [3], data.train_mask, batch_size=50, sampler=[5, 5, 119, 0])
    (batch,) = loader
    assert batch.input_id.tolist() == [5, 5, 119, 0] and len(loader) == 1 and len(loader.dataset) == 120
    data.y = (torch.arange(NODES) < 6).long()
    given = ImbalancedSampler(data, input_nodes=data.train_mask)
    rare = [float(batch.y[: batch.batch_size].float().mean()) for batch in NeighborLoader(data, [3], data.train_mask, batch_size=120, sampler=given)]  # fmt: skip
    assert 0.3 < sum(rare) / len(rare) < 0.7
    parts = [DistributedSampler(loader.dataset, 2, rank, shuffle=False) for rank in range(2)]
    seen = [batch.input_id for part in parts for batch in NeighborLoader(data, [3], data.train_mask, batch_size=32, sampler=part)]  # fmt: skip
    assert torch.cat(seen).sort().values.tolist() == list(range(120))


@pytest.mark.parametrize("fanouts", [[4, 3], [-1], [-1, 2]])
def test_batches_are_sub_graphs_with_the_seeds_first(data, fanouts):
    loader = NeighborLoader(data, fanouts, input_nodes=data.train_mask, batch_size=32)
    assert len(loader) == 4
    seeds = []
    for batch in loader:
        check(batch, data)
        seeds.append(batch.n_id[: batch.batch_size])
        assert torch.equal(seeds[-1], torch.arange(120)[batch.input_id])
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        assert batch.num_sampled_nodes[0] == batch.batch_size
        # Each node is expanded once, by the hop after the one that found it.
        expanded = batch.num_nodes - batch.num_sampled_nodes[-1]
        assert batch.edge_index[1].max() < expanded
        degree = torch.bincount(data.edge_index[1], minlength=NODES)[batch.n_id[: batch.batch_size]]
        wanted = degree if fanouts[0] == -1 else degree.clamp_max(fanouts[0])
        assert torch.equal(torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)[: batch.batch_size], wanted)
        assert len(batch.e_id.unique()) == len(batch.e_id)
    assert torch.equal(torch.cat(seeds), torch.arange(120))


def test_batches_live_on_and_epochs_differ(data):
    loader = NeighborLoader(data, [2, 2], batch_size=16, shuffle=True, seed=1)
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert torch.equal(torch.cat([b.n_id[: b.batch_size] for b in batches]).sort().values, torch.arange(NODES))
        for batch in batches:
            check(batch, data)
    assert not torch.equal(epochs[0][0].n_id[:16], epochs[1][0].n_id[:16])
    again = list(NeighborLoader(data, [2, 2], batch_size=16, shuffle=True, seed=1, threads=3))
    assert all(torch.equal(a.edge_index, b.edge_index) for a, b in zip(again, epochs[0], strict=True))
    assert len(list(NeighborLoader(data, [2], batch_size=64, drop_last=True))) == NODES // 64


def test_two_iterations_side_by_side_do_not_mix(data):
    loader = NeighborLoader(data, [2], batch_size=50)
    for one, other in zip(loader, loader, strict=True):
        assert torch.equal(one.n_id[: one.batch_size], other.n_id[: other.batch_size])
        check(one, data)
        check(other, data)


def test_all_edges_between_sampled_nodes_where_the_sub_graph_is_induced(data):
    for batch in NeighborLoader(data, [2], batch_size=40, subgraph_type="induced"):
        check(batch, data)
        inside = torch.isin(data.edge_index, batch.n_id).all(dim=0).nonzero().flatten()
        assert torch.equal(batch.e_id.sort().values, inside)


def test_sampled_edges_in_both_directions(data):
    data.x = data.x.numpy()
    one, both = (
        next(iter(NeighborLoader(data, [2], batch_size=40, subgraph_type=kind)))
        for kind in ("directional", "bidirectional")
    )
    assert torch.equal(both.x, torch.from_numpy(data.x)[both.n_id])
    forward, all_ = ({tuple(pair) for pair in batch.edge_index.t().tolist()} for batch in (one, both))
    assert all_ == forward | {(b, a) for a, b in forward}
    ends = data.edge_index[:, both.e_id].sort(dim=0).values
    assert torch.equal(both.n_id[both.edge_index].sort(dim=0).values, ends)


def test_a_batch_of_chosen_places_with_duplicates(data):
    loader = NeighborLoader(data, [3], input_nodes=torch.arange(100, 150), batch_size=8)
    batch = loader([4, 4, 0])
    check(batch, data)
    assert batch.n_id[:3].tolist() == [104, 104, 100]


def test_weights_and_replacement(data):
    data.weight[data.edge_index[0] % 2 == 0] = 0
    for batch in NeighborLoader(data, [3], batch_size=50, weight_attr="weight"):
        assert (batch.n_id[batch.edge_index[0]] % 2 == 1).all()
    batch = next(iter(NeighborLoader(data, [40], batch_size=50, replace=True)))
    check(batch, data)
    assert len(batch.e_id.unique()) < len(batch.e_id)


@pytest.mark.parametrize("model", [GraphSAGE, GAT])
def test_a_model_of_pyg_learns_without_a_change(data, model):
    net = model(3, 16, num_layers=2, out_channels=3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    loader = NeighborLoader(
        data, [5, 5], input_nodes=data.train_mask, batch_size=30, shuffle=True, transform=lambda b: b
    )
    for _ in range(8):
        for batch in loader:
            optimizer.zero_grad()
            out = net(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )
            torch.nn.functional.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size]).backward()
            optimizer.step()
    assert float((net(data.x, data.edge_index).argmax(1) == data.y)[120:].float().mean()) > 0.7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"data": HeteroData()}, "input_nodes must be a kind of nodes"),
        ({"data": (None, None)}, "input_nodes of stores must be given"),
        ({"data": Data(x=torch.zeros(3, 1))}, "no edge_index"),
        ({"disjoint": True, "subgraph_type": "induced"}, "subgraph_type induced is not built"),
        ({"disjoint": True, "data": Data(x=torch.zeros(3, 1))}, "no edge_index"),
        ({"disjoint": True, "bogus": 1}, "there is no argument bogus"),
        ({"data": Data(x=torch.zeros(3, 1), edge_index=torch.zeros(3, 2).long())}, r"edge_index must be \[2, edges\]"),
        ({"time_attr": "time"}, "the data has no time of nodes or of edges"),
        ({"temporal_strategy": "last"}, "temporal_strategy is not built"),
        ({"sampler": range(3), "shuffle": True}, "a sampler decides the order"),
        ({"subgraph_type": "sideways"}, "there is no subgraph_type sideways"),
        ({"input_nodes": ("paper", None)}, "input_nodes of a named kind"),
        ({"bogus": 1}, "there is no argument bogus"),
        ({"weight_attr": "nothing"}, "the data has no nothing"),
        ({"input_nodes": [9999]}, "seeds reach from 9999"),
        ({"batch_size": 0}, "batch must be a whole number"),
        ({"num_neighbors": [0]}, "fanouts must be at least 1"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(data, arguments, says):
    with pytest.raises(GraphError, match=says):
        NeighborLoader(**({"data": data, "num_neighbors": [2]} | arguments))


def test_disjoint_neighbourhoods_share_no_node(data):
    loader = NeighborLoader(data, [4, 3], input_nodes=data.train_mask, batch_size=32, disjoint=True, shuffle=True)
    assert len(loader) == 4
    for batch in loader:
        check(batch, data)
        assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))
        assert torch.equal(*batch.batch[batch.edge_index]), "an edge between two neighbourhoods"
        assert torch.equal(batch.n_id[: batch.batch_size], torch.arange(NODES)[batch.input_id])
        each = batch.batch * NODES + batch.n_id
        assert len(each.unique()) == len(each)


def test_attributes_are_read_on_the_device_where_they_are(data):
    data.x, data.y, data.edge_attr = data.x.to("meta"), data.y.to("meta"), data.edge_attr.to("meta")
    for batch in NeighborLoader(data, [2, 2], batch_size=50):
        assert (batch.x.device.type, batch.y.device.type, batch.edge_attr.device.type) == ("meta",) * 3
        assert (len(batch.x), len(batch.y), len(batch.edge_attr)) == (batch.num_nodes, batch.num_nodes, batch.num_edges)
        assert batch.long.device.type == "cpu"


@pytest.mark.parametrize("mask", [True, False])
def test_seeds_are_numbered_in_the_mask_or_among_the_ids(data, mask):
    ids = torch.arange(5, 105, 2)
    given = torch.zeros(NODES, dtype=torch.bool).index_fill(0, ids, True) if mask else ids
    for batch in NeighborLoader(data, [2], given, batch_size=16, shuffle=True):
        seeds = batch.n_id[: batch.batch_size]
        assert torch.equal(batch.input_id if mask else ids[batch.input_id], seeds)
