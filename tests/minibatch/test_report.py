"""The timeline's spans and the page that shows them."""

import re
from itertools import pairwise

import pytest
import torch

from minibatch import models, report, synthetic, timeline, training
from minibatch.batches import BatchLoader
from minibatch.report import EpochPage, EpochRow
from minibatch.timeline import Span, SpanTrace, of_kernels, stage_of, window
from run import main


@pytest.fixture(scope="module")
def spans() -> list[Span]:
    """Of an epoch on the CPU."""
    graph = synthetic.generate("tiny", seed=1)
    torch.manual_seed(0)
    model = models.make("sage", graph.features.shape[1], 16, graph.classes, 2)
    trace = SpanTrace("cpu")
    with BatchLoader(graph, [5, 5], 64, threads=2) as loader:
        optimizer = torch.optim.Adam(model.parameters())
        record = training.train_epoch(model, optimizer, loader, graph.train, 0, "cpu", trace=trace)
    assert record.stages_s["sampling"] > 0
    assert record.stages_s["features"] > 0
    return trace.finish()


def test_an_epoch_is_traced_in_order(spans):
    assert min(span.begin_s for span in spans) == 0
    assert all(span.end_s >= span.begin_s for span in spans)
    steps = [span for span in spans if span.lane == "training"]
    assert all(one.end_s <= other.begin_s for one, other in pairwise(steps)), "one lane, one thing"
    sampled = [span for span in spans if span.stage == "sampling"]
    assert len(sampled) == -(-900 // 64)
    assert {span.lane for span in sampled} <= {"thread 1", "thread 2"}
    # A batch is sampled, then sliced, then trained on: the n-th of each begin in that order.
    for number, span in enumerate(span for span in spans if span.stage == "compute"):
        assert sampled[number].begin_s <= span.begin_s


def test_a_picture_shows_some_whole_batches(spans):
    shown = window(spans)
    assert sum(span.stage == "backward" for span in shown) == timeline.SHOWN
    assert min(span.begin_s for span in shown) == 0
    assert max(span.end_s for span in shown) == max(span.end_s for span in shown if span.stage == "backward")
    few = [Span("thread 1", "sampling", 0.5, 3.0), Span("training", "backward", 1.0, 2.0)]
    assert window(few) == [Span("thread 1", "sampling", 0.0, 1.5), Span("training", "backward", 0.5, 1.5)]


def test_a_trace_ends_where_its_room_does():
    trace = SpanTrace("cpu", room=3)
    for number in range(9):
        trace.add("lane", "copy", number, number + 1)
        with trace.span("lane", "compute"):
            pass
    assert len(trace.finish()) == 3


def test_kernels_are_spans_by_name_and_stream():
    found = of_kernels([("sample_neighbors_wide", 7, 2000, 500), ("ampere_bf16_gemm", 3, 1000, 4000)])
    assert [(span.lane, span.stage) for span in found] == [("stream 1", "compute"), ("stream 2", "sampling")]
    assert [span.begin_s for span in found] == pytest.approx([0, 1e-6])
    assert [span.end_s for span in found] == pytest.approx([4e-6, 1.5e-6])
    names = {
        "void insert(int const*, int*)": "sampling",
        "gather_mean_kernel<__nv_bfloat16>": "features",
        "Memcpy HtoD (Pinned -> Device)": "copy",
        "scatter_kernel": "backward",
        "nvjet_tst_128x64": "compute",
    }
    assert {name: stage_of(name) for name in names} == names


def test_the_page_has_a_bar_a_rung_and_a_picture(spans):
    rows = [
        EpochRow("gpu-graph", "fast", 0.5, edges=1e6, accuracy=0.9, spans=window(spans), stages_s={"sample": 0.2, "compute": 0.4}),
        EpochRow("salient", "slow", 10.0, extrapolated=True, edges=1e6, nodes=1e5, row_bytes=256),
        EpochRow("pyg", "not here", error="neither <pyg-lib> nor torch-sparse can be imported"),
    ]  # fmt: skip
    html = report.render(EpochPage("tiny", "a device", ["how"], rows))
    lengths = [float(found) for found in re.findall(r'<rect class="rung"[^>]* width="([0-9.]+)"', html)]
    assert len(lengths) == 4, "two rungs with a time, for a desktop and a phone"
    assert lengths[1] == pytest.approx(20 * lengths[0], rel=0.05)
    assert "≈ 10 s" in html
    assert "neither &lt;pyg-lib&gt; nor" in html
    assert len(re.findall('<rect class="stage ', html)) == 2 * len(window(spans))
    assert "<script" not in html
    assert "20×" in html


@pytest.mark.parametrize(("end", "most"), [(6.66, 8), (0.00085, 8), (3e-6, 3), (120.0, 3)])
def test_ticks_are_round_and_few(end, most):
    ticks = report.ticks(end, most)
    assert ticks[0] == 0
    assert most / 3 <= len(ticks) <= most + 1
    assert ticks[-1] <= end


def test_an_epoch_writes_its_report(tmp_path, capsys):
    words = ["epoch", "--graph", "tiny", "--fanout", "5", "--batch", "128", "--epochs", "1", "--threads", "1"]
    words += ["--rung", "salient"]
    path = tmp_path / "report.html"
    assert main([*words, "--report", str(path), "--runs-dir", str(tmp_path)]) == 0
    assert "salient" in path.read_text()
    assert "What ran when" in path.read_text()
    assert main([*words, "--report", str(tmp_path / "no" / "report.html"), "--runs-dir", str(tmp_path / "other")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "other").exists(), "it trained first"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_steps_show_sampling_beside_computation():
    from minibatch.ops import Kernels
    from minibatch.resident import Trainer

    graph = synthetic.generate("small", device="cuda")
    model = models.make("sage", graph.features.shape[1], 64, graph.classes, 3).cuda()
    trainer = Trainer(graph, model, Kernels("cuda"), [15, 10, 5], 1024, captured=True)
    trainer.prepare()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = trainer.spans()
    assert {"sampling", "features", "compute", "backward"} <= {span.stage for span in found}
    sampling = [span for span in found if span.stage == "sampling"]
    others = [span for span in found if span.stage not in ("sampling", "copy")]
    assert any(a.begin_s < b.end_s and b.begin_s < a.end_s for a in sampling for b in others), "nothing overlaps"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
