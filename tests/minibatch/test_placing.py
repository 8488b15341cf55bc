"""Where a graph goes: on the device where all fits, features in host memory where they must, else one sentence."""

import ctypes
import json

import pytest
import torch
from rich.console import Console

from minibatch import graphs, memory, placing, ranks, synthetic
from minibatch.graphs import GraphError
from minibatch.placing import Sizes, Wanted, count_cached_rows, place, place_of_features
from run import main

GIB = 1 << 30
PAPERS = Sizes(topology=15 * GIB, features=28 * GIB, row=256)


@pytest.mark.parametrize(
    ("free", "host", "asked", "where"),
    [
        (139, 100, None, "hbm"),
        (139, 100, "hbm", "hbm"),
        (139, 100, "host", "host"),
        (24, 100, None, "host"),
        (51, 0, None, "hbm"),
        (50, 100, None, "host"),
    ],
)
def test_features_are_on_the_device_where_all_fits(free, host, asked, where):
    assert place_of_features(PAPERS, free * GIB, host * GIB, asked) == where


@pytest.mark.parametrize(
    ("free", "host", "asked", "says"),
    [
        (16, 500, None, "neighbours take 15.0 GiB, and 16.0 GiB are free on the device: take --rung salient"),
        (24, 500, "hbm", "graph and features take 43.0 GiB, and 24.0 GiB are free on the device: take --features host"),
        (
            24,
            30,
            None,
            "features take 28.0 GiB and fit nowhere: 24.0 GiB are free on the device, 30.0 GiB in host memory",
        ),
    ],
)
def test_what_fits_nowhere_is_refused(free, host, asked, says):
    with pytest.raises(GraphError, match=says):
        place_of_features(PAPERS, free * GIB, host * GIB, asked)


def test_the_cache_is_what_is_asked_for_or_what_is_left():
    assert count_cached_rows(PAPERS, 24 * GIB, None) == int((0.85 * 24 - 15) * GIB) // 256
    assert count_cached_rows(PAPERS, 24 * GIB, 2) == 2 * GIB // 256
    assert count_cached_rows(PAPERS, 24 * GIB, 0) == 0
    with pytest.raises(GraphError, match=r"--cache-gib 6: 5\.4 GiB are left behind the graph"):
        count_cached_rows(PAPERS, 24 * GIB, 6)


def test_a_folder_is_placed_as_a_graph_by_name_is(tmp_path):
    graphs.save(synthetic.generate("tiny"), tmp_path / "mine")
    console = Console(quiet=True)
    on_device = place(Wanted(str(tmp_path / "mine"), "cpu", True), console)
    assert on_device.cache_rows is None
    behind = place(Wanted(str(tmp_path / "mine"), "cpu", True, features="host", cache_gib=1000 * 64 / GIB), console)
    assert behind.cache_rows == 1000
    assert behind.graph.features.equal(on_device.graph.features)
    kept = place(Wanted(str(tmp_path / "mine"), "cpu", False), console)
    assert kept.graph.features.equal(graphs.load(tmp_path / "mine").features)


def test_little_memory_is_said_before_anything_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(placing, "available_bytes", lambda: 1 << 20)
    assert main(["epoch", "--graph", "small", "--runs-dir", str(tmp_path)]) == 2
    assert "small takes 11.9 MiB, and 1.0 MiB are free on the CPU: take a smaller graph" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("gpu", "host", "says"),
    [
        (9, 500, r"drawing papers100M-like takes 13\.\d GiB, and 9\.0 GiB are free on the GPU, which makes it"),
        (139, 40, r"papers100M-like takes 4\d\.\d GiB, and 40\.0 GiB are free on the CPU"),
    ],
)
def test_a_large_graph_that_the_cpu_is_to_sample_is_refused_before_it_is_made(gpu, host, says, monkeypatch):
    monkeypatch.setattr(placing.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(placing, "free_bytes", lambda _: gpu * GIB)
    monkeypatch.setattr(placing, "available_bytes", lambda: host * GIB)
    with pytest.raises(GraphError, match=says):
        place(Wanted("papers100M-like", "cuda", resident=False), Console(quiet=True))


def test_ranks_share_the_memory_of_a_machine(monkeypatch):
    for name, share in {"WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4}.items():
        alone = placing.available_bytes() * ranks.here()
        monkeypatch.setenv(name, str(share))
        assert placing.available_bytes() == pytest.approx(alone / share, rel=0.5)


def test_epochs_say_what_the_cache_held(tmp_path, capsys):
    words = ["--graph", "tiny", "--fanout", "5", "5", "--rung", "gpu-fused", "--epochs", "1", "--json"]
    shares = []
    for gib in (0, 1000 * 64 / GIB, 3000 * 64 / GIB):
        given = ["--features", "host", "--cache-gib", str(gib), "--runs-dir", str(tmp_path)]
        assert main(["epoch", *words, *given]) == 0
        shares.append(json.loads(capsys.readouterr().out)["epochs"][0]["cache_hits"])
    assert shares[0] == 0
    assert 1000 / 3000 < shares[1] < 1
    assert shares[2] == 1


def test_memory_that_a_gpu_reads_is_freed_with_its_last_tensor(monkeypatch):
    held: dict[int, ctypes.Array] = {}

    class Native:
        @staticmethod
        def memory_make(size: ctypes.c_int64, _device: ctypes.c_int64, _threads: ctypes.c_int64) -> int:
            made = ctypes.create_string_buffer(size.value)
            held[ctypes.addressof(made)] = made
            return ctypes.addressof(made)

        @staticmethod
        def memory_free(at: ctypes.c_void_p) -> None:
            del held[at.value]

    monkeypatch.setattr(memory, "library", lambda _source, _device: Native)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    made = memory.empty_pinned((400, 7), torch.bfloat16)
    made.fill_(1)
    assert (made.shape, list(held)) == ((400, 7), [made.data_ptr()])
    part = made[5:]
    del made
    assert held
    assert float(part.float().mean()) == 1
    del part
    assert not held
