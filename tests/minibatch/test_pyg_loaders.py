"""Links and heterogeneous graphs: PyTorch Geometric's loaders over native sampling."""

import pytest
import torch

from minibatch import LinkNeighborLoader, NeighborLoader
from minibatch.graphs import GraphError
from minibatch.relations import RelationSampler

geometric = pytest.importorskip("torch_geometric")
from torch_geometric.data import Data, HeteroData  # noqa: E402

NODES = {"paper": 60, "author": 40}
RELATIONS = (("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author"))


def hetero() -> HeteroData:
    torch.manual_seed(5)
    data = HeteroData()
    for kind, count in NODES.items():
        data[kind].x = torch.arange(count)[:, None].float()
        data[kind].y = torch.arange(count) % 3
    for relation in RELATIONS:
        source, _, target = relation
        ends = torch.stack([torch.randint(NODES[source], (300,)), torch.randint(NODES[target], (300,))])
        data[relation].edge_index, data[relation].edge_attr = ends, torch.arange(300)
    return data


def homogeneous() -> Data:
    torch.manual_seed(6)
    return Data(x=torch.arange(80)[:, None].float(), edge_index=torch.randint(80, (2, 400)), weight=torch.rand(400))


def edges_of(batch, data) -> None:
    """Every sampled edge is the one that its number says."""
    for relation in RELATIONS:
        source, _, target = relation
        row, column = batch[relation].edge_index
        wanted = data[relation].edge_index[:, batch[relation].e_id]
        assert torch.equal(torch.stack([batch[source].n_id[row], batch[target].n_id[column]]), wanted)
        assert torch.equal(batch[relation].edge_attr, batch[relation].e_id)
        assert len(batch[relation].e_id.unique()) == len(batch[relation].e_id), "without replacement"


def test_a_batch_of_a_heterogeneous_graph_holds_its_own_edges_and_attributes():
    data = hetero()
    loader = NeighborLoader(data, [4, 3], ("paper", torch.arange(10, 45)), batch_size=8, seed=2)
    seen = []
    for batch in loader:
        edges_of(batch, data)
        assert batch["paper"].n_id[: batch["paper"].batch_size].tolist() == (10 + batch["paper"].input_id).tolist()
        for kind in NODES:
            assert torch.equal(batch[kind].x[:, 0].long(), batch[kind].n_id)
            assert len(batch[kind].n_id.unique()) == batch[kind].num_nodes
        seen += batch["paper"].input_id.tolist()
    assert seen == list(range(35)) and len(loader) == 5


def test_at_most_as_many_neighbours_as_asked_for_and_all_where_there_are_fewer():
    data = hetero()
    fanouts = {RELATIONS[0]: [2], RELATIONS[1]: [-1], RELATIONS[2]: [0]}
    (batch,) = NeighborLoader(data, fanouts, "paper", batch_size=60)
    for relation, most in ((RELATIONS[0], 2), (RELATIONS[1], 300)):
        degree = torch.bincount(data[relation].edge_index[1], minlength=60)
        taken = torch.bincount(batch[relation].edge_index[1], minlength=60)
        assert torch.equal(taken, degree.clamp_max(most))
    assert batch[RELATIONS[2]].num_edges == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_neighbours_are_drawn_in_proportion(weighted):
    weights = torch.tensor([1.0, 1.0, 6.0, 0.0]) if weighted else None
    edges = {("a", "to", "b"): (torch.arange(4), torch.zeros(4, dtype=torch.int64))}
    held = {("a", "to", "b"): weights} if weighted else None
    one = RelationSampler({"a": 4, "b": 1}, edges, {("a", "to", "b"): [1]}, weights=held)
    counts = torch.zeros(4)
    for seed in range(4000):
        counts[one.sample({"b": torch.tensor([0])}, seed).nodes["a"]] += 1
    wanted = torch.tensor([0.125, 0.125, 0.75, 0.0]) if weighted else torch.full((4,), 0.25)
    torch.testing.assert_close(counts / 4000, wanted, atol=0.03, rtol=0)


def test_threads_do_not_decide_what_is_sampled_and_every_epoch_is_another():
    data = hetero()

    def epochs(threads: int) -> list[list[int]]:
        loader = NeighborLoader(data, [2, 2], "author", batch_size=7, seed=3, threads=threads)
        return [[n for batch in loader for n in batch[RELATIONS[0]].e_id.tolist()] for _ in range(2)]

    first, second = epochs(1)
    assert [first, second] == epochs(4)
    assert first != second


def test_links_come_with_both_ends_their_labels_and_negatives():
    data = homogeneous()
    loader = LinkNeighborLoader(data, [3, 2], batch_size=32, neg_sampling_ratio=2.0, shuffle=True)
    for batch in loader:
        links = len(batch.input_id)
        assert torch.equal(batch.n_id[batch.edge_label_index[:, :links]], data.edge_index[:, batch.input_id])
        assert batch.edge_label.tolist() == [1.0] * links + [0.0] * 2 * links
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert len(batch.n_id.unique()) == batch.num_nodes
    assert len(loader) == 13


@pytest.mark.parametrize("disjoint", [False, True])
def test_triplets_of_links_of_two_kinds(disjoint):
    data = hetero()
    wanted = {"mode": "triplet", "amount": 2}
    loader = LinkNeighborLoader(data, [2, 2], RELATIONS[1], neg_sampling=wanted, batch_size=50, disjoint=disjoint)
    for batch in loader:
        edges = data[RELATIONS[1]].edge_index[:, batch[RELATIONS[1]].input_id]
        authors, papers = batch["author"], batch["paper"]
        assert torch.equal(authors.n_id[authors.src_index], edges[0])
        assert torch.equal(papers.n_id[papers.dst_pos_index], edges[1])
        assert papers.dst_neg_index.shape == (50, 2)
        if disjoint:
            row, column = batch[RELATIONS[0]].edge_index
            assert torch.equal(papers.batch[row], papers.batch[column]), "an edge between two neighbourhoods"
        else:
            edges_of(batch, data)


def test_masks_of_numpy_are_masks():
    mask = torch.arange(60) % 3 == 0
    seen = [
        batch["paper"].n_id[: batch["paper"].batch_size]
        for batch in NeighborLoader(hetero(), [2], ("paper", mask.numpy()), batch_size=7)
    ]
    assert torch.cat(seen).equal(torch.nonzero(mask).flatten())
    seen = [
        batch.n_id[: batch.batch_size]
        for batch in NeighborLoader(homogeneous(), [2], mask.repeat(2)[:80].numpy(), batch_size=7, disjoint=True)
    ]
    assert torch.cat(seen).equal(torch.nonzero(mask.repeat(2)[:80]).flatten())


def timed() -> Data:
    data = homogeneous()
    data.time, data.stamp = torch.randint(50, (80,)), torch.randint(50, (400,))
    return data


@pytest.mark.parametrize("of", ["time", "stamp"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("fanout", [-1, 2])
def test_a_neighbourhood_holds_what_was_there_at_its_seeds_time(of, strategy, fanout):
    data, moments = timed(), torch.randint(50, (80,))
    when = data.stamp if of == "stamp" else data.time[data.edge_index[0]]
    for batch in NeighborLoader(
        data, [fanout, fanout], batch_size=20, input_time=moments, time_attr=of, temporal_strategy=strategy
    ):
        row, column = batch.edge_index
        assert torch.equal(batch.seed_time, moments[batch.input_id])
        assert torch.equal(batch.batch[row], batch.batch[column]), "an edge between two neighbourhoods"
        tree = batch.batch[column]
        assert (when[batch.e_id] <= batch.seed_time[tree]).all()
        for place in range(sum(batch.num_sampled_nodes[:2])):  # nodes whose neighbours were sampled
            there = data.edge_index[1] == batch.n_id[place]
            there &= when <= batch.seed_time[batch.batch[place]]
            taken = batch.e_id[column == place]
            assert len(taken) == len(taken.unique()) == min(int(there.sum()), fanout if fanout > 0 else 400)
            if strategy == "last" and len(taken):
                assert when[taken].sort().values.equal(when[there].sort().values[-len(taken) :])


def test_seeds_without_a_time_given_have_their_own_and_kinds_without_times_are_always_there():
    data = timed()
    batch = next(iter(NeighborLoader(data, [-1], batch_size=80, time_attr="time")))
    source, target = (batch.n_id[ends] for ends in batch.edge_index)
    assert (data.time[source] <= data.time[target]).all()
    assert len(source) == int((data.time[data.edge_index[0]] <= data.time[data.edge_index[1]]).sum())
    kinds = hetero()
    kinds["paper"].time = torch.arange(60)
    batch = next(iter(NeighborLoader(kinds, [-1], "paper", batch_size=60, time_attr="time")))
    cites, writes = (batch[relation].e_id for relation in RELATIONS[:2])
    ends = kinds[RELATIONS[0]].edge_index
    assert cites.sort().values.equal(torch.nonzero(ends[0] <= ends[1]).flatten())
    assert len(writes) == 300


@pytest.mark.parametrize("last", [False, True])
def test_earlier_neighbours_are_drawn_alike(last):
    edges = {("a", "to", "b"): (torch.arange(6), torch.zeros(6, dtype=torch.int64))}
    one = RelationSampler(
        {"a": 6, "b": 1}, edges, {("a", "to", "b"): [2]}, times={("a", "to", "b"): [9, 1, 5, 1, 3, 6]}, last=last
    )
    counts = torch.zeros(6)
    for seed in range(2000):
        counts[one.sample({"b": torch.tensor([0])}, seed, {"b": torch.tensor([5])}).nodes["a"]] += 1
    wanted = torch.tensor([0.0, 0, 1, 0, 1, 0] if last else [0.0, 0.5, 0.5, 0.5, 0.5, 0])
    torch.testing.assert_close(counts / 2000, wanted, atol=0.05, rtol=0)


def test_links_are_looked_at_when_they_were_made():
    data = timed()
    loader = LinkNeighborLoader(
        data, [3], data.edge_index[:, :100], edge_label_time=data.stamp[:100], time_attr="time", batch_size=20,
        neg_sampling="binary",
    )  # fmt: skip
    for batch in loader:
        seeds = 4 * 20
        moment = batch.edge_label_time.repeat(4)
        assert (batch.time[seeds:] <= moment[batch.batch[seeds:] % 20]).all()


def test_stores_of_features_and_graphs_are_read_as_pyg_reads_them():
    from torch_geometric.testing import MyFeatureStore, MyGraphStore

    data, features, graph = hetero(), MyFeatureStore(), MyGraphStore()
    for kind in NODES:
        features.put_tensor(data[kind].x, group_name=kind, attr_name="x", index=None)
    for relation in RELATIONS:
        source, _, target = relation
        graph.put_edge_index(
            tuple(data[relation].edge_index), edge_type=relation, layout="coo", size=(NODES[source], NODES[target])
        )
    for batch in NeighborLoader((features, graph), [4, 3], ("paper", torch.arange(30)), batch_size=8):
        for kind in NODES:
            assert torch.equal(batch[kind].x[:, 0].long(), batch[kind].n_id)
        for relation in RELATIONS:
            source, _, target = relation
            row, column = batch[relation].edge_index
            ends = torch.stack([batch[source].n_id[row], batch[target].n_id[column]])
            assert torch.equal(ends, data[relation].edge_index[:, batch[relation].e_id])


def test_both_directions_and_weights():
    batch = next(iter(LinkNeighborLoader(homogeneous(), [2], subgraph_type="bidirectional", batch_size=16)))
    edges = set(zip(*batch.edge_index.tolist(), strict=True))
    assert edges and all((b, a) in edges for a, b in edges)
    data = homogeneous()
    data.weight[::2] = 0
    for batch in LinkNeighborLoader(data, [3, 3], weight_attr="weight", batch_size=64):
        assert (batch.e_id % 2 == 1).all()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: LinkNeighborLoader(homogeneous(), [2], time_attr="time"), "'edge_label_time' is not set"),
        (lambda: NeighborLoader(timed(), [2], time_attr="weight"), "times of .* must be whole numbers"),
        (
            lambda: NeighborLoader(timed(), [2], time_attr="time", temporal_strategy="first"),
            "there is uniform and last",
        ),
        (lambda: next(iter(NeighborLoader(timed(), [2], time_attr="stamp"))), "have no time of their own"),
        (lambda: next(iter(NeighborLoader(hetero(), [2], "paper", input_time=torch.ones(60)))), "need a time_attr"),
        (lambda: LinkNeighborLoader(homogeneous(), [2], subgraph_type="induced"), "subgraph_type induced is not built"),
        (lambda: LinkNeighborLoader(homogeneous(), [2], directed=False), "subgraph_type induced is not built"),
        (lambda: LinkNeighborLoader(homogeneous(), [-2]), "-1 for all"),
        (lambda: LinkNeighborLoader(homogeneous(), [2], torch.tensor([[0], [80]])), "the graph has 80 nodes"),
        (lambda: LinkNeighborLoader(homogeneous(), [2], batch_size=0), "batch_size must be a whole number"),
        (lambda: LinkNeighborLoader(homogeneous(), [2], weight_attr="age"), "the data has no age"),
        (lambda: NeighborLoader(hetero(), [2], ("paper", torch.tensor([60]))), "the graph has 60 nodes"),
        (lambda: NeighborLoader(hetero(), [2], "paper", threads=-1), "threads must be a whole number"),
    ],
)
def test_what_is_not_built_or_does_not_fit_is_refused_in_one_sentence(made, said):
    with pytest.raises(GraphError, match=said) as found:
        made()
    assert "\n" not in str(found.value)


def test_a_heterogeneous_model_of_pyg_learns_from_its_batches():
    from torch_geometric.nn import SAGEConv, to_hetero

    data = hetero()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 3)

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    for kind in NODES:
        data[kind].x = torch.nn.functional.one_hot(data[kind].y, 3).float()
    model = to_hetero(Net(), data.metadata())
    loader = NeighborLoader(data, [5, 5], "paper", batch_size=20)
    with torch.no_grad():
        model(data.x_dict, data.edge_index_dict)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(30):
        for batch in loader:
            size = batch["paper"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size]
            loss = torch.nn.functional.cross_entropy(out, batch["paper"].y[:size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
