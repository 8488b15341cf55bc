"""Checks by property: of one call, of several together, and of outputs whose used length another one states."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.checks import properties
from harness.checks.cases import make_case
from harness.checks.correctness import judge_call
from harness.checks.drawing import draw, draw_inputs
from harness.checks.tolerance import compute_expected
from harness.device import generator
from harness.evaluate import Evaluator
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.catalog import KernelError
from kernels.chance import off_mean, too_uneven
from kernels.spec import Workload

SPEC = """
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="pick",
    summary="picked = places of positive inputs, in any order; total = how many there are",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",)),
        Tensor(name="picked", role="output", shape=("n",), dtype="int32", used="total"),
        Tensor(name="total", role="output", shape=("1",), dtype="int32"),
        Size(name="n"),
    ),
    workloads=(Workload(axes={"n": 100}, dtype="float32"),),
)
"""
REFERENCE = """
import torch


def reference(x):
    return {"total": (x > 0).sum().reshape(1)}
"""
PROPERTIES = """
import torch


def violated(inputs, outputs, sizes):
    wanted = torch.nonzero(inputs["x"] > 0).flatten()
    picked = outputs["picked"].long().sort().values
    return "" if torch.equal(picked, wanted) else f"{len(picked)} places of {sizes['n']}, not those of the positive ones"


def several(inputs, sizes):
    return [inputs, inputs]


def violated_together(calls, sizes):
    first, second = (outputs["picked"] for _, outputs in calls)
    return "" if torch.equal(first, second) else "the same input in another order"
"""
BASELINE = """
#include <cstdint>

extern "C" void pick_float32(const float* x, int32_t* picked, int32_t* total, int64_t n) {
    int32_t count = 0;
    for (int64_t i = n - 1; i >= 0; --i) {
        if (x[i] > 0.0f) {
            picked[count++] = static_cast<int32_t>(i);
        }
    }
    *total = count;
}
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    texts = {"spec.py": SPEC, "reference.py": REFERENCE, "properties.py": PROPERTIES, "baseline.cpp": BASELINE}
    made = tmp_path / "pick"
    made.mkdir()
    for name, text in texts.items():
        (made / name).write_text(text)
    return made


def verdict(folder: Path, text: str, tmp_path: Path):
    store = Store(tmp_path / "store")
    with Evaluator(catalog.load(str(folder)), "cpu", store) as evaluator:
        return evaluator.verify(evaluator.build(store.put(text)))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("", "", ""),
        ("*total = count;", "*total = count + 1;", "total[0] is"),
        ("x[i] > 0.0f", "x[i] > 0.5f || (x[i] > 0.0f && i < 1000 && ++count && --count < 0)", "total[0] is"),
        ("static_cast<int32_t>(i);", "0;", "not those of the positive ones"),
        ("*total = count;", "*total = count; static int odd; if (odd++ % 2 && count > 1) {"
         " int32_t t = picked[0]; picked[0] = picked[1]; picked[1] = t; }", "the same input in another order"),
    ],
    ids=["right", "total", "too few", "places", "order"],
)  # fmt: skip
def test_a_verdict_counts_properties(folder, tmp_path, old, new, says):
    found = verdict(folder, BASELINE.replace(old, new) if old else BASELINE, tmp_path)
    assert found.outcome is (Outcome.INCORRECT if says else Outcome.PASSED), found.reason
    assert says in found.reason
    if not says:
        assert "2 calls together" in {check.name for check in found.checks}


def test_what_is_behind_the_used_length_is_not_looked_at(folder):
    kernel = catalog.load(str(folder))
    workload = kernel.spec.workloads[0]
    case = make_case(kernel, workload, "ordinary", {}, "cpu")
    places = torch.nonzero(case.inputs["x"] > 0).flatten().int()
    picked = torch.full((100,), 12345, dtype=torch.int32)
    picked[: len(places)] = places
    outputs = {"picked": picked, "total": torch.tensor([len(places)], dtype=torch.int32)}
    assert judge_call(kernel.spec, workload, outputs, case.expected)[1] == ""
    picked[0] = 12345
    assert judge_call(kernel.spec, workload, outputs, case.expected)[1]


ORDERED = """
import torch


def reference(x):
    picked = torch.full(x.shape, -1)
    places = torch.nonzero(x > 0).flatten()
    picked[: len(places)] = places
    return {"picked": picked, "total": (x > 0).sum().reshape(1)}
"""


def test_of_an_output_with_a_stated_length_the_reference_judges_that_much(folder):
    (folder / "reference.py").write_text(ORDERED)
    (folder / "properties.py").unlink()
    kernel = catalog.load(str(folder))
    workload = kernel.spec.workloads[0]
    case = make_case(kernel, workload, "ordinary", {}, "cpu")
    places = torch.nonzero(case.inputs["x"] > 0).flatten().int()

    def said(picked: torch.Tensor, total: int = len(places)) -> str:
        left = torch.cat([picked, torch.full((100 - len(picked),), 12345, dtype=torch.int32)])
        outputs = {"picked": left, "total": torch.tensor([total], dtype=torch.int32)}
        return judge_call(kernel.spec, workload, outputs, case.expected)[1]

    assert said(places) == ""
    last = len(places) - 1
    assert said(places[:-1]).startswith(f"picked[{last}] is 12345, should be {places[-1]}")
    assert said(places.flip(0)).startswith("picked[")
    assert said(places[:-1], total=last).startswith("total[0] is")


def test_a_kernel_may_have_properties_alone(folder):
    (folder / "reference.py").unlink()
    kernel = catalog.load(str(folder))
    inputs = make_case(kernel, kernel.spec.workloads[0], "ordinary", {}, "cpu").inputs
    right = compute_expected(kernel, kernel.spec.workloads[0], inputs)
    assert not right
    assert right.law is not None
    (folder / "properties.py").unlink()
    with pytest.raises(KernelError, match=r"no reference\.py"):
        catalog.load(str(folder))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "defines no function violated"),
        ("def violated(inputs, outputs, sizes): return ''\ndef several(inputs, sizes): return []", "both several"),
        ("def violated(inputs, outputs, sizes): return ''\ndef several(inputs, sizes): return [inputs]\n"
         "def violated_together(calls, sizes): return None", "returned None, not a sentence"),
        ("def violated(inputs, outputs, sizes): return ''\ndef violated_together(calls, sizes): return ''\n"
         "def several(inputs, sizes): return [{'x': inputs['x'][:3]}]", "changed the shape or dtype of x"),
    ],
    ids=["none", "half", "no sentence", "other shapes"],
)  # fmt: skip
def test_what_properties_cannot_be_is_refused(folder, text, says):
    (folder / "properties.py").write_text(text)
    with pytest.raises(KernelError, match=says):
        kernel = catalog.load(str(folder))
        workload = kernel.spec.workloads[0]
        inputs = make_case(kernel, workload, "ordinary", {}, "cpu").inputs
        calls = properties.several(kernel, workload, inputs)
        outputs = {"picked": torch.zeros(100, dtype=torch.int32), "total": torch.zeros(1, dtype=torch.int32)}
        properties.find_joint_violation(kernel, workload, calls, [outputs] * len(calls))


def test_properties_are_part_of_a_verdicts_key(folder, tmp_path):
    assert verdict(folder, BASELINE, tmp_path).passed
    (folder / "properties.py").write_text("def violated(inputs, outputs, sizes): return 'never right'")
    catalog._properties.cache_clear()
    assert verdict(folder, BASELINE, tmp_path).reason.endswith("never right")


def test_used_must_name_a_count(folder):
    (folder / "spec.py").write_text(SPEC.replace('used="total"', 'used="x"'))
    with pytest.raises(KernelError, match="used must name an output of shape"):
        catalog.load(str(folder))


def test_integers_are_drawn_as_their_kind_says():
    workload, rng = Workload(axes={"edges": 5000, "nodes": 300}, dtype="int32"), torch.Generator().manual_seed(1)
    offsets = torch.empty(301, dtype=torch.int64)
    draw(offsets, "offsets:edges", workload, rng)
    steps = offsets.diff()
    assert (int(offsets[0]), int(offsets[-1]), int(steps.min())) == (0, 5000, 0)
    assert int(steps.max()) > 5 * 5000 / 300, "degrees are not skewed"
    ids = torch.empty(20_000, dtype=torch.int32)
    draw(ids, "padded:nodes", workload, rng)
    assert (int(ids.min()), int(ids.max())) == (-1, 299)
    assert float((ids < 0).float().mean()) == pytest.approx(0.125, abs=0.02)
    places = torch.empty(280, dtype=torch.int64)
    draw(places, "distinct:nodes", workload, rng)
    some = places[places >= 0]
    assert len(some.unique()) == len(some) < 280 and int(some.max()) < 300
    order = torch.empty(300, dtype=torch.int32)
    draw(order, "permutation:nodes", workload, rng)
    assert torch.equal(order.sort().values, torch.arange(300, dtype=torch.int32)) and not torch.equal(
        order, order.sort().values
    )
    bits = torch.empty(100, dtype=torch.int64)
    draw(bits, "bits", workload, rng)
    assert int(bits.max()) > 1 << 60
    floats = torch.empty(200_000, dtype=torch.bfloat16)
    draw(floats, "bits", workload, rng)
    assert bool(floats.isnan().any()) and bool(floats.isinf().any()) and bool((floats < 0).any())


@pytest.mark.parametrize(
    "values, must",
    [
        ("index:nodes", {0, 8}), ("padded:nodes", {-1, 0, 8}), ("distinct:nodes", {-1, 0, 8}), ("integers:-7:90", {-7, 89}), ("ordinary", {-128, 127}),
        ("below:bound", {0, 8}), ("permutation:nodes", {0, 8}),
    ],
)  # fmt: skip
def test_what_comes_by_chance_only_in_a_small_tensor_is_always_drawn(values, must):
    """Whoever takes the id 0 for none passed one verdict in eighteen: of five ids of nine none was 0 in any draw."""
    workload, rng = Workload(axes={"nodes": 9}, dtype="int32"), torch.Generator().manual_seed(1)
    places = set()
    for edges in (False, True) * 120:  # a place that 7 % of the draws choose is missed once in 10^7 runs
        ids = torch.empty(4, 2, dtype=torch.int32)
        draw(ids, values, workload, rng, torch.tensor([9] * 4), edges=edges)
        assert must <= set(ids.view(-1).tolist()), ids
        known = ids[ids >= 0]
        assert not values.startswith(("distinct", "permutation")) or len(known.unique()) == len(known), ids
        if edges and values.startswith(("padded", "distinct")):
            assert bool((ids < 0).all(1).any()), "no row is of padding alone"
        places.add(int((ids == max(must)).int().view(-1).argmax()))
    assert len(places) == 8, "it is anywhere"


def test_runs_are_empty_at_both_ends_and_somewhere():
    workload, rng = Workload(axes={"edges": 60}, dtype="int32"), torch.Generator().manual_seed(1)
    for edges in (False, True) * 120:  # a place that 7 % of the draws choose is missed once in 10^7 runs
        offsets = torch.empty(9, dtype=torch.int32)
        draw(offsets, "offsets:edges", workload, rng, edges=edges)
        steps = offsets.diff()
        assert (int(offsets[0]), int(offsets[-1]), int(steps.min())) == (0, 60, 0)
        assert not edges or ((int(steps[0]), int(steps[-1])) == (0, 0) and int(steps.max()) >= 29)


def test_all_that_a_byte_holds_is_drawn_where_nothing_is_said():
    codes = torch.empty(4000, dtype=torch.uint8)
    draw(codes, "ordinary", Workload(axes={}, dtype="uint8"), torch.Generator())
    assert int((codes > 127).sum()) > 1500 and int(codes.max()) == 255


def test_chance_is_told_from_bias():
    torch.manual_seed(3)
    fair = torch.bincount(torch.randint(20, (100_000,)), minlength=20)
    assert too_uneven(fair, 5000, 5000, 1e-6) == ""
    fair[0] += 600
    assert "chi-square" in too_uneven(fair, 5000, 5000, 1e-6)
    values = torch.randn(10_000)
    assert off_mean(values, 0.0, 1.0, 1e-6) == ""
    assert "standard errors" in off_mean(values, 0.1, 1.0, 1e-6)


def test_the_stated_rate_of_false_alarms_holds():
    # Of 4,000 fair draws at a rate of 5 % about 200 are refused: far from none and far from all.
    torch.manual_seed(4)
    refused = sum(
        bool(too_uneven(torch.bincount(torch.randint(16, (4000,)), minlength=16), 250, 250, 0.05)) for _ in range(4000)
    )
    assert 120 < refused < 290


def test_a_right_sampler_is_not_refused_by_chance(tmp_path):
    kernel = catalog.load("sample_neighbors")
    library = tmp_path / "sampler.so"
    source = kernel.baselines("cpu")["production"]
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    workload = Workload(axes={"nodes": 2048, "edges": 65_536, "rows": 1024, "fanout": 7}, dtype="int32")
    module, chances = kernel.properties, []
    with pytest.MonkeyPatch.context() as patch:
        for alarm in (1e-9, 0.5):
            patch.setattr(module, "ALARM", alarm)
            chances.append(sum(bool(_together(kernel, workload, library)) for _ in range(4)))
    assert chances[0] == 0
    assert chances[1] == 4, "tests that refuse nothing at a rate of one half would not test"


def test_no_two_calls_of_seeds_have_the_same_but_the_last(monkeypatch):
    """An honest sampler gave the same sample twice, and was refused: of two small seeds of 1,000 one in 600 cases was the same."""
    kernel = catalog.load("sample_neighbors")
    monkeypatch.setattr(kernel.properties, "SMALL_SEEDS", 10)
    workload = Workload(axes={"nodes": 1024, "edges": 32_768, "rows": 1024, "fanout": 7}, dtype="int32")
    inputs = make_case(kernel, workload, "bits", {}, "cpu").inputs | {"seed": torch.zeros(1, dtype=torch.int64)}
    calls = kernel.properties.several(inputs, workload.axes)[: kernel.properties.CALLS]
    seeds = {int(call["seed"]) for call in calls}
    assert len(seeds) == kernel.properties.CALLS and len(seeds & set(kernel.properties.POPULAR_SEEDS)) >= 2


def _together(kernel, workload: Workload, library: Path) -> str:
    import ctypes

    entry = ctypes.CDLL(str(library)).sample_neighbors_int32
    inputs = make_case(kernel, workload, "bits", {}, "cpu").inputs
    pairs = []
    for call in kernel.properties.several(inputs, workload.axes):
        picked = torch.empty(1024, 7, dtype=torch.int32)
        tensors = (call["rowptr"], call["col"], call["frontier"], call["seed"], picked)
        sizes = (ctypes.c_int64(workload.axes[name]) for name in ("nodes", "edges", "rows", "fanout"))
        entry(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), *sizes)
        pairs.append((call, {"picked": picked}))
    return kernel.properties.violated_together(pairs, workload.axes)


# --- timed calls of a sampler ------------------------------------------------------------------------------------------


CALLS = {"by squares": 8, "as a row that the seed says": 16, "odd places a tenth less": 8}
"""What two calls do not show; of 12 tries eight calls of the second missed 2, and sixteen none."""
ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as three rows before": lambda row: row % 3,
    "as half a call before": lambda row: row % (len(row) // 2),
    "from both ends": lambda row: torch.minimum(row, len(row) - 1 - row),
}
"""Whose random numbers a row has, by what is wrong."""

RELATED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor]] = {
    "odd rows mirrored": lambda places, degree, rng: degree - 1 - places,
    "odd rows half a row on": lambda places, degree, rng: (places + degree // 2) % degree,
    "odd rows shifted": lambda places, degree, rng: (
        (places + (torch.rand(degree.shape, generator=rng) * degree).long()) % degree
    ),
    "odd rows mirrored somewhere": lambda places, degree, rng: (
        ((torch.rand(degree.shape, generator=rng) * degree).long() - places) % degree
    ),
}
"""What odd rows make of another row's places: each row alone is right."""


def sample_in_pairs(
    how: str, calls: list[torch.Tensor], fanout: int, rng: torch.Generator, far: int = 1
) -> list[torch.Tensor]:
    """Places of each call's rows, of the degrees in `calls`: `how` of RELATED makes an odd row's of those that the random numbers of the row
    `far` before give at its own degree."""
    made = []
    for degree in calls:
        drawn, row = torch.rand(len(degree), 64, generator=rng), torch.arange(len(degree))
        odd = row // far % 2 == 1
        drawn = torch.where(odd[:, None], drawn[(row - far).clamp_min(0)], drawn)
        length = degree[:, None].clamp_min(1)
        tried = (drawn * length).long()
        keys = torch.full((len(degree), int(degree.max())), 128.0) + torch.rand(
            len(degree), int(degree.max()), generator=rng
        )
        keys.scatter_reduce_(1, tried, torch.arange(64.0).expand_as(tried), "amin")
        keys[torch.arange(keys.shape[1]) >= length] = math.inf
        places = keys.topk(fanout, dim=1, largest=False).indices
        made.append(torch.where(odd[:, None], RELATED[how](places, length, rng), places))
    return made


def _primes_from(least: torch.Tensor) -> torch.Tensor:
    """The first prime of at least so much. [rows, 1]"""
    primes = torch.tensor([n for n in range(2, 20_000) if all(n % d for d in range(2, math.isqrt(n) + 1))])
    return primes[torch.searchsorted(primes, least.clamp_min(2))][:, None]


def picked_by(how: str, call: dict[str, torch.Tensor], fanout: int, rng: torch.Generator) -> torch.Tensor:
    rowptr, col, frontier = call["rowptr"], call["col"], call["frontier"].long()
    first = rowptr[frontier.clamp_min(0)]
    degree = torch.where(frontier >= 0, rowptr[frontier.clamp_min(0) + 1] - first, 0)
    keys = torch.rand(len(frontier), int(degree.max()), generator=rng)
    places = torch.arange(keys.shape[1]).expand_as(keys)
    begins = (torch.rand(len(frontier), 1, generator=rng) * degree[:, None]).floor()
    if how == "the first":
        keys = places.float()
    elif how == "a window":
        keys = (places - begins).remainder(degree[:, None].clamp_min(1))
    elif how == "not the last":
        keys = torch.where(places == degree[:, None] - 1, 2.0, keys)
    elif how == "alike in all rows":
        keys = keys[:1].expand_as(keys)
    elif how == "a start and a step":  # modulo the next prime: any two places as likely as any other two
        prime = _primes_from(degree)
        step = 1 + (torch.rand(len(frontier), 1, generator=rng) * (prime - 1)).long()
        keys = ((places - begins.long()) * step).remainder(prime).float()
    elif how == "one of a few samples":
        keys = keys[:64][torch.randint(64, (len(keys),), generator=rng)]
    elif how == "by squares":  # of a start and a step, too: nothing of them is at equal distances
        prime = _primes_from(degree)
        drawn = (torch.rand(len(frontier), 2, generator=rng) * prime).long()
        keys = (drawn[:, :1] + (1 + drawn[:, 1:]) * torch.arange(4 * fanout).square()) % prime
        keys = torch.full((len(keys), int(degree.max()) + 1), math.inf).scatter_reduce(
            1, torch.minimum(keys, degree[:, None]), torch.arange(4.0 * fanout).expand_as(keys), "amin"
        )[:, :-1]
    elif how == "half of each node's":
        mine = (frontier[:, None] * 31 + places * 17 + frontier[:, None] * places // 3) % 2 == 0
        keys = torch.where(mine, keys, keys + 2)
    elif how == "as a row that the seed says":
        drawn_as = torch.rand(len(keys), 64, generator=rng)
        pairs = torch.randperm(len(keys), generator=rng).view(-1, 2)
        drawn_as[pairs[:, 1]] = drawn_as[pairs[:, 0]]
        tried = (drawn_as * degree[:, None]).long()
        keys = (keys + 64).scatter_reduce(1, tried, torch.arange(64.0).expand_as(tried), "amin")
    elif how == "odd places a tenth less":
        keys = torch.where((places % 2 == 1) & (torch.rand(keys.shape, generator=rng) < 0.1), 2.0, keys)
    elif how == "every second follows":
        long = degree[:, None] >= 4 * fanout
        base = (torch.rand(len(keys), fanout // 2, generator=rng) * degree[:, None]).long()
        keys = torch.where(
            long, keys.scatter(1, base, -2.0).scatter(1, base * 101 % degree[:, None].clamp_min(1), -1.0), keys
        )
    elif how == "long rows by their beginning":
        keys = torch.where((degree[:, None] >= 16 * fanout) & (places >= 12 * fanout), keys + 2, keys)
    elif how == "long rows by few numbers":
        drawn_as = torch.rand(8, 64, generator=rng)[torch.arange(len(keys)) % 8]
        tried = torch.where(degree[:, None] >= 8 * fanout, drawn_as * degree[:, None], 0.0).long()
        alike = (keys + 64).scatter_reduce(1, tried, torch.arange(64.0).expand_as(tried), "amin")
        keys = torch.where(degree[:, None] >= 8 * fanout, alike, keys)
    elif how in ALIKE:
        row = torch.arange(len(keys))
        drawn_as = torch.rand(len(keys), 64, generator=rng)[ALIKE[how](row)]
        tried = (drawn_as * degree[:, None]).long()
        keys = (keys + 64).scatter_reduce(1, tried, torch.arange(64.0).expand_as(tried), "amin")
    elif how == "in pairs":  # two places apart, as likely as any
        keys = torch.where(places % 4 < 2, keys, keys.roll(2, dims=1) + 1e-6).gather(
            1, (places + begins.long()).remainder(degree[:, None].clamp_min(1)).clamp_max(keys.shape[1] - 1)
        )
    keys = torch.where(places < degree[:, None], keys, math.inf)
    chosen = keys.topk(min(fanout, keys.shape[1]), dim=1, largest=False).indices
    ids = col[(first[:, None] + chosen).clamp_max(len(col) - 1)]
    return torch.where(torch.arange(chosen.shape[1]) < degree.clamp_max(fanout)[:, None], ids, -1).to(torch.int32)


@pytest.mark.parametrize(
    "how",
    [
        "chance",
        "the first",
        "a window",
        "not the last",
        "alike in all rows",
        *ALIKE,
        "in pairs",
        "a start and a step",
        "one of a few samples",
        "by squares",
        "half of each node's",
        "as a row that the seed says",
        "odd places a tenth less",
    ],
)
def test_timed_calls_of_a_sampler_show_whether_chance_picked(how: str) -> None:
    """On graphs as they are timed, which nobody prepared: every row counts by its own degree."""
    kernel, rng = catalog.load("sample_neighbors"), generator("cpu")
    workload = Workload(axes={"nodes": 20_000, "edges": 300_000, "rows": 8192, "fanout": 10}, dtype="int32")
    graph, seen = draw_inputs(kernel.spec, workload, "", {}, "cpu"), []
    for _ in range(CALLS.get(how, 2)):
        call = draw_inputs(kernel.spec, workload, "", {}, "cpu") | {name: graph[name] for name in ("rowptr", "col")}
        picked = {"picked": picked_by(how, call, 10, rng)}
        seen.append(properties.evidence(kernel, workload, call, picked, 2))
    found = properties.unlikely(kernel, workload, seen)
    assert bool(found) is (how != "chance"), found
    assert properties.unlikely(kernel, workload, []) == "", "of no call nothing is said"


@pytest.mark.parametrize("nodes", [8, 100])
@pytest.mark.parametrize("how", ["chance", "the first", "a window"])
def test_rows_that_have_a_neighbour_twice_are_looked_at_too(how: str, nodes: int) -> None:
    """As all long rows of a random graph have: whoever picked from their first places alone was not seen."""
    kernel, rng = catalog.load("sample_neighbors"), generator("cpu")
    workload = Workload(axes={"nodes": nodes, "edges": 300 * nodes, "rows": 2048, "fanout": 10}, dtype="int32")
    call = draw_inputs(kernel.spec, workload, "", {}, "cpu")
    picked = {"picked": picked_by(how, call, 10, rng)}
    assert kernel.properties.violated(call, picked, workload.axes) == ""
    found = properties.unlikely(kernel, workload, [properties.evidence(kernel, workload, call, picked, 2)])
    assert bool(found) is (how != "chance"), found


@pytest.mark.parametrize("far", [1, 37])
@pytest.mark.parametrize("how", RELATED)
def test_rows_that_make_their_picks_of_another_rows_are_found(how: str, far: int) -> None:
    """By all rows of a call, whatever their degrees."""
    rng, module = generator("cpu"), catalog.load("sample_neighbors").properties
    degrees = [torch.randint(11, 50, (4096,), generator=rng) for _ in range(2)]
    places = sample_in_pairs(how, degrees, 10, rng, far)
    said = module._follow([(torch.arange(4096), d.double(), p) for d, p in zip(degrees, places, strict=True)], 1e-11)
    assert f" {far} places behind it is" in said, said


def test_rows_that_follow_from_others_however_far_before_are_found(monkeypatch) -> None:
    """Multiplied by a number that is prime to their degree, beyond the distances that are looked at one by one."""
    rng, module = generator("cpu"), catalog.load("sample_neighbors").properties
    monkeypatch.setitem(RELATED, "multiplied", lambda places, degree, rng: places * 7 % degree)
    primes = torch.tensor([n for n in range(23, 120) if all(n % d for d in range(2, n))])
    degrees = [primes[torch.randint(len(primes), (4096,), generator=rng)] for _ in range(6)]

    def look(calls: list[torch.Tensor]) -> str:
        own = [
            module._by_part(places, degree, 10) / ((degree - 10) / (degree - 1)).sqrt()[:, None]
            for degree, places in zip(degrees, calls, strict=True)
        ]
        return module._follow_at_a_distance([one.float() for one in own], 1e-11)

    assert " 500 places behind it is" in look(sample_in_pairs("multiplied", degrees, 10, rng, 500))
    chance = [
        torch.rand(4096, int(d.max()), generator=rng).masked_fill(torch.arange(int(d.max())) >= d[:, None], 2)
        for d in degrees
    ]
    assert not look([keys.topk(10, dim=1, largest=False).indices for keys in chance])


@pytest.mark.parametrize("calls_apart", [0, 1])
def test_rows_whose_places_follow_from_another_rows_by_no_parts_are_found(calls_apart: int, monkeypatch) -> None:
    """Each place by a table, of which neither parts nor gaps need to show anything: in one call, and from call to call."""
    rng, module = generator("cpu"), catalog.load("sample_neighbors").properties
    monkeypatch.setattr(module, "_learnt", lambda *_: "")
    degree, row, table = torch.full((4096,), 41.0), torch.arange(4096), torch.randperm(41, generator=rng)
    drawn = [torch.rand(4096, 41, generator=rng).topk(10, dim=1).indices for _ in range(2)]
    assert module._follow([(row, degree, places) for places in drawn], 1e-9) == ""
    drawn[calls_apart] = torch.where(row[:, None] % 2 == 1, table[drawn[0].roll(1, 0)], drawn[calls_apart])
    said = module._follow([(row, degree, places) for places in drawn], 1e-11)
    assert " 1 places behind it" in said and ("in the next call" in said) == calls_apart, said


def test_false_alarms_of_rows_that_follow_others_are_bounded() -> None:
    """Of independent samples the bound on the chance is above the true one, whatever they share."""
    module, rng = catalog.load("sample_neighbors").properties, generator("cpu")
    degree, pairs = torch.randint(11, 30, (4000,), generator=rng), torch.arange(4000).view(2, -1)
    refused = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SUSPECT", 0.0)
        for _ in range(40):
            keys = torch.rand(4000, 30, generator=rng).masked_fill_(torch.arange(30) >= degree[:, None], 2)
            places = keys.topk(10, dim=1, largest=False).indices
            refused += bool(module._share_alike(degree, places, *pairs, 0.2))
    assert refused < 21, "at most eight of forty, by the bound"  # more than 20 come once in 20,000


@pytest.mark.parametrize(
    "how", ["chance", "every second follows", "long rows by their beginning", "long rows by few numbers"]
)
def test_long_rows_that_are_few_are_looked_at_by_themselves(how: str) -> None:
    kernel, rng = catalog.load("sample_neighbors"), generator("cpu")
    workload = Workload(axes={"nodes": 100_000, "edges": 3_000_000, "rows": 6000, "fanout": 10}, dtype="int32")
    graph, seen = draw_inputs(kernel.spec, workload, "", {}, "cpu"), []
    for _ in range(10):
        frontier = torch.randint(100_000, (6000,), generator=rng)
        frontier[graph["rowptr"].diff()[frontier] > 600] = -1  # longer ones only take longer
        call = graph | {"frontier": frontier.to(torch.int32)}
        picked = {"picked": picked_by(how, call, 10, rng)}
        seen.append(properties.evidence(kernel, workload, call, picked, 2))
    found = properties.unlikely(kernel, workload, seen)
    assert bool(found) is (how != "chance"), found
