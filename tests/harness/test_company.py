"""What timed calls are given: values of the distribution, never twice the same, and made once more to the last bit.

What the kernels of probes/company.cu do is written down here once more, slowly, in plain Python, and held against what
the parent computes; on a GPU the kernels themselves are held against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.checks.drawing import draw
from harness.checks.layout import Layout
from harness.device import ArgumentBuffers, generator
from harness.timing import mixtures, neighbours
from harness.timing.mixtures import InputMixture, is_persistent
from harness.timing.neighbours import InputProducer, digest, mix_number
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import DTYPE_BYTES, Size, Spec, Tensor, Workload
from tests.harness.far_side import negation

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")
KINDS = {
    **dict.fromkeys(
        FLOATS, ("ordinary", "large", "tiny", "zeros", "outliers", "infinities", "uniform", "scaled", "range:-2:3")
    ),
    **dict.fromkeys(("int64", "int32", "int16"), ("ordinary", "index:limit")),
    **dict.fromkeys(("int8", "uint8"), ("ordinary",)),
}
CASES = [(dtype, kind) for dtype, kinds in KINDS.items() for kind in kinds]
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LIMIT = 100
small = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])


def described(dtype: str, kind: str, n: int, **more: Any) -> tuple[Spec, Workload]:
    """One input of n elements, one output as large."""
    workload = Workload(axes={"n": n, "limit": LIMIT}, dtype=dtype)  # type: ignore[arg-type]
    tensors = (
        Tensor(name="input", role="input", shape=("n",), values=(kind,), **more),
        Tensor(name="out", role="output", shape=("n",)),
    )
    spec = Spec(
        name="copy",
        summary="out = input",
        axes=("n", "limit"),
        dtypes=(dtype,),  # type: ignore[arg-type]
        arguments=(*tensors, Size(name="n")),
        workloads=(workload,),
    )
    return spec, workload


def mixture(dtype: str, kind: str, n: int, *, steps: int = 64, most_round_bytes: int = 1 << 62) -> InputMixture:
    spec, workload = described(dtype, kind, n)
    made = InputMixture(spec, spec.inputs[0], workload, n * DTYPE_BYTES[dtype], steps, most_round_bytes)
    for part in "axb":
        setattr(made, part, torch.empty(made.bytes[part], dtype=torch.uint8))
    made.fill(generator("cpu"))
    return made


def values(one: InputMixture, at_a: int, at_b: int) -> torch.Tensor:
    to = torch.empty(one.size, dtype=torch.uint8)
    one.mix(to, at_a, at_b)
    return to.view(getattr(torch, one.dtype))


def one_by_one(one: InputMixture, at_a: int, at_b: int) -> bytes:
    """a ^ (x & b), byte by byte; b goes round."""
    a, x, b = (bytes(raw.numpy()) for raw in (one.a, one.x, one.b))
    return bytes(a[at_a + i] ^ (x[at_a + i] & b[at_b + i % one.round_bytes]) for i in range(one.size))


def raw_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(BITS[tensor.element_size()]).to(torch.int64)


def exponents(tensor: torch.Tensor) -> torch.Tensor:
    mantissa = mixtures._MANTISSA[str(tensor.dtype).removeprefix("torch.")]
    width = 8 * tensor.element_size()
    return (raw_bits(tensor) >> mantissa) & ((1 << (width - 1 - mantissa)) - 1)


# --- what an input is made of ----------------------------------------------------------------------------------------


@small
@given(case=st.sampled_from(CASES), n=st.integers(1, 70), data=st.data(), goes_round=st.booleans())
def test_an_input_is_the_formula_byte_by_byte_and_the_same_again(
    case: Any, n: int, data: Any, goes_round: bool
) -> None:
    one = mixture(*case, n, steps=9, most_round_bytes=32 if goes_round else 1 << 62)
    at_a, at_b = (8 * data.draw(st.integers(0, 2 * 9 - 2)) for _ in "ab")
    made = values(one, at_a, at_b)
    assert bytes(made.view(torch.uint8).numpy()) == one_by_one(one, at_a, at_b)
    as_on_a_gpu = torch.empty(one.size, dtype=torch.uint8)
    one.mix_by_torch(as_on_a_gpu, at_a, at_b)
    assert torch.equal(as_on_a_gpu, made.view(torch.uint8))
    assert torch.equal(raw_bits(values(one, at_a, at_b)), raw_bits(made))


@pytest.mark.parametrize(("dtype", "kind"), CASES)
@pytest.mark.parametrize("goes_round", [False, True])
def test_values_stay_in_their_distribution(dtype: str, kind: str, goes_round: bool) -> None:
    one = mixture(dtype, kind, 5001, most_round_bytes=256 if goes_round else 1 << 62)
    size = DTYPE_BYTES[dtype]
    for at_a, at_b in ((0, 0), (0, 16), (48, 160), (16 * 63, 16 * 63)):
        drawn = one.a[at_a : at_a + one.size].view(getattr(torch, dtype))
        made = values(one, at_a, at_b)
        if dtype not in FLOATS:
            other = (one.a ^ one.x)[at_a : at_a + one.size].view(made.dtype)
            assert bool(((made == drawn) | (made == other)).all()), "of an integer no bits are mixed"
            low, high = (0, LIMIT) if kind.startswith("index") else (0, 256) if dtype == "uint8" else (-128, 128)
            assert low <= int(made.min()) and int(made.max()) < high
            assert 0.2 < float((made != drawn).float().mean()) < 0.8
            continue
        wide, from_ = made.to(torch.float64), drawn.to(torch.float64)
        assert torch.equal(wide.isnan(), from_.isnan()), "no NaN is made"
        assert torch.equal(wide.isinf(), from_.isinf()), "and no infinity"
        if kind.startswith(("uniform", "scaled", "range")):
            low, high = (-2, 3) if kind.startswith("range") else (0, 1)
            free = raw_bits(made) != raw_bits(drawn)
            assert bool(((wide >= low) & (wide <= high) | ~free).all())
            assert float(free.float().mean()) > (0.4 if size == 1 else 0.8)
        else:
            other = (one.a ^ one.x)[at_a : at_a + one.size].view(made.dtype)
            alike = exponents(made) == exponents(drawn)
            assert bool((alike | (exponents(made) == exponents(other))).all()), "as large as one of two draws"
            differ = int((exponents(other) != exponents(drawn)).sum())
            if goes_round or differ == 0 or differ > 20:  # few that differ may all fall one way, once in 200 times
                assert bool(alike.all()) == (goes_round or differ == 0)
            assert torch.equal(wide == 0, from_ == 0), "zeros stay zeros, and there are no others"
            left = wide[wide != 0]  # of a tiny float8 nothing
            assert 0.4 < float((left < 0).double().mean()) < 0.6 or not len(left), "signs are drawn again"
    if kind == "infinities" and dtype != "float8_e4m3fn":
        assert 0.05 < float(wide.isinf().float().mean()) < 0.15
    if kind == "zeros":
        assert 0.45 < float((wide == 0).float().mean()) < 0.55


@pytest.mark.parametrize("kind", ["uniform", "scaled", "range:-2:3", "range:-1:1", "range:5:1000"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_of_a_range_the_whole_mantissa_is_new(dtype: str, kind: str) -> None:
    """Whoever keeps a sum of what the upper bits say must not have it for a later call."""
    one = mixture(dtype, kind, 6000, most_round_bytes=1 << 20)
    top = 1 << (mixtures._MANTISSA[dtype] - 1)
    drawn, x = one.a.view(getattr(torch, dtype)), raw_bits(one.x.view(getattr(torch, dtype)))
    whole = (x & top) != 0
    wide = drawn.to(torch.float64).abs()
    low, high = (float(end) for end in kind.split(":")[1:]) if kind.startswith("range") else (0.0, float(wide.max()))
    # All but those within a factor of two of an end that is no power of two, and zeros.
    inside = (wide > 2 * max(low, 0.0)) & (wide < 2.0 ** torch.tensor(high).log2().floor()) & (wide > 1e-4)
    assert bool(whole[inside & (drawn.to(torch.float64) > 0)].all())
    assert float((x != 0).double().mean()) > 0.97
    if kind == "range:-1:1":
        assert float((x < 0).double().mean()) > 0.9, "and the sign"


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_bit_that_may_change_is_drawn_both_ways(dtype: str) -> None:
    """A sign that stays what it was when the set was written would be known before the call."""
    words = mixture(dtype, "zeros", 5001 * 8 // DTYPE_BYTES[dtype]).b.view(torch.int32)
    for bit in range(32):
        assert 0.4 < float(((words >> bit) & 1).double().mean()) < 0.6, bit


@pytest.mark.usefixtures("whole_checks")
@pytest.mark.parametrize(("dtype", "kind"), CASES)
def test_every_call_has_an_input_that_differs_as_one_that_was_drawn_anew(dtype: str, kind: str) -> None:
    spec, workload = described(dtype, kind, 999)
    layout = Layout(spec, workload, 6)
    buffers = ArgumentBuffers("cpu", layout.size)
    production = InputProducer(spec, workload, layout, "cpu", 0)
    production.open(buffers, generator("cpu"))
    drawn = [torch.empty(999, dtype=getattr(torch, dtype)) for _ in range(2)]
    for one in drawn:
        draw(one, kind, workload, generator("cpu"))
    alike = float((raw_bits(drawn[0]) == raw_bits(drawn[1])).float().mean())
    seen: list[torch.Tensor] = []
    for _ in range(3):
        production.produce(list(range(6)))
        seen += [raw_bits(layout.view(buffers, spec.inputs[0])[slot]).clone() for slot in range(6)]
    # Or as a draw and its own elements in another order: `scaled` draws of eight bits are alike by how near their scales are.
    alike = max([alike, *(float((one == one[torch.randperm(len(one))]).float().mean()) for one in seen)])
    pairs = list(itertools.combinations(seen, 2))
    near = [float((one == other).float().mean()) >= alike + 0.08 for one, other in pairs]
    assert sum(near) <= 1, "two of 65536 places in `a` are the same once in four hundred times"
    assert not any(torch.equal(one, other) for one, other in pairs)
    buffers.close()


@pytest.mark.parametrize("dtype", FLOATS)
def test_where_every_bit_may_change_alike_it_need_not_be_read(dtype: str) -> None:
    """And `b`, which holds the bits alone then, keeps what may not change out."""
    one = mixture(dtype, "ordinary", 300, most_round_bytes=256)
    assert one.same_x and not mixture(dtype, "zeros", 300).same_x
    pattern = one.x[:8].repeat(len(one.b) // 8)
    for _ in range(2):
        assert torch.equal(one.b & pattern, one.b) and int(one.b.unique().numel()) > 2
        before = one.b.clone()
        one.renew(generator("cpu"))
        assert not torch.equal(one.b, before)


# --- who is made anew ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "more", "kept"),
    [
        ("input", {}, False),
        ("inout", {}, False),
        ("output", {}, False),
        ("input", {"constant": True}, True),
        ("input", {"touched": "n"}, True),
        ("inout", {"touched": "n"}, False),
        ("input", {"values": ("index:n",), "dtype": "int32"}, False),
        ("input", {"values": ("range:-2:2",)}, False),
        ("input", {"values": ("zeros", "ordinary")}, False),
    ],
)
def test_what_a_model_keeps_is_not_made_for_each_call(role: Any, more: dict, kept: bool) -> None:
    assert is_persistent(Tensor(name="t", role=role, shape=("n",), **more)) is kept


def test_every_distribution_that_a_spec_may_name_can_be_mixed_or_is_drawn_whole() -> None:
    for kind in (
        "ordinary",
        "large",
        "tiny",
        "zeros",
        "outliers",
        "infinities",
        "uniform",
        "scaled",
        "range:0:1",
        "index:n",
    ):
        assert kind.partition(":")[0] in mixtures.ELEMENTWISE


def test_more_tensors_than_a_launch_can_carry_are_refused_in_a_sentence() -> None:
    spec, workload = described("float32", "ordinary", 4)
    more = tuple(Tensor(name=f"t{i}", role="input", shape=("n",)) for i in range(neighbours.MAX_TENSORS))
    spec = spec.model_copy(update={"arguments": (*spec.arguments, *more)})
    with pytest.raises(KernelError, match="copy has 34 tensors; on a GPU at most 32"):
        InputProducer(spec, workload, Layout(spec, workload, 2), "cuda", 0)


# --- the digest ------------------------------------------------------------------------------------------------------


def slow_digest(outputs: list[bytes]) -> int:
    """The loop of consume_kernel, one word after another."""

    def term(word: int, index: int) -> int:
        h = ((word ^ (index * 0x9E3779B1 & 0xFFFFFFFF)) * 0x85EBCA77) & 0xFFFFFFFF
        return ((h ^ (h >> 15)) * 0xC2B2AE3D) & 0xFFFFFFFF

    total = base = 0
    for raw in outputs:
        packed = len(raw) // 16 * 16
        for i in range(0, packed, 4):
            total += term(int.from_bytes(raw[i : i + 4], "little"), base + i // 4)
        for i in range(packed, len(raw)):
            total += term(raw[i] + 1, base + i)
        base += len(raw)
    return total & ((1 << 64) - 1)


def tensors(outputs: list[bytes]) -> list[torch.Tensor]:
    return [torch.frombuffer(bytearray(raw), dtype=torch.uint8) for raw in outputs]


@small
@given(st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=3))
def test_the_digest_is_the_sum_over_words_and_places(outputs: list[bytes]) -> None:
    assert digest(tensors(outputs)) == slow_digest(outputs)


@small
@given(st.binary(min_size=1, max_size=80), st.integers(0, 10**6), st.integers(1, 255))
def test_one_byte_changes_the_digest(raw: bytes, at: int, by: int) -> None:
    other = bytearray(raw)
    other[at % len(raw)] ^= by
    assert digest(tensors([raw])) != digest(tensors([bytes(other)]))


@small
@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.data())
def test_words_that_hardly_differ_are_told_apart_by_their_places(words: list[int], data: Any) -> None:
    """Of a sum of words mixed by exclusive or alone half of such exchanges left nothing behind."""
    one, other = (data.draw(st.integers(0, len(words) - 1)) for _ in "ab")
    swapped = list(words)
    swapped[one], swapped[other] = words[other], words[one]
    raw = [b"".join(word.to_bytes(size, "little") for word in each) for each in (words, swapped) for size in (1, 4)]
    found = [digest(tensors([each])) for each in raw]
    assert (found[0] == found[2]) == (found[1] == found[3]) == (words == swapped)


@pytest.mark.parametrize("size", [8, 13, 64, 1000])
def test_the_digest_depends_on_places(size: int) -> None:
    """Elements that are swapped, rolled, or of another output; zeros that are fewer."""
    rng = generator("cpu")
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=rng)
    raw[0], raw[-1] = 7, 9
    swapped = raw.clone()
    swapped[[0, -1]] = raw[[-1, 0]]
    rolled = raw.roll(4)
    zeros = torch.zeros_like(raw)
    found = [digest(one) for one in ([raw], [swapped], [rolled], [raw, zeros], [zeros, raw], [zeros], [zeros, zeros])]
    assert len(set(found)) == len(found)


def test_the_finaliser_is_splitmix64s() -> None:
    """Its first outputs for seed 0: a state that grows by the constant, mixed."""
    constant = 0x9E3779B97F4A7C15
    found = [mix_number(number * constant & ((1 << 64) - 1)) for number in range(3)]
    assert found == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


# --- a whole comparison's inputs ----------------------------------------------------------------------------------------


@pytest.fixture
def opened() -> Iterator[Any]:
    """Makes a Production in an arena of the host's memory, for a CPU or as a GPU's parent makes it."""
    arenas: list[ArgumentBuffers] = []

    def of(spec: Spec, workload: Workload, device: str, slots: int = 4, copies: int = 3) -> InputProducer:
        layout = Layout(spec, workload, slots, {t.name: copies for t in spec.inputs if is_persistent(t)})
        made = InputProducer(spec, workload, layout, device, 4096)
        arenas.append(ArgumentBuffers("cpu", layout.size + made.size))
        made.open(arenas[-1], generator("cpu"))
        return made

    yield of
    for buffers in arenas:
        buffers.close()


def produced(production: InputProducer, message: dict[str, Any], slot: int) -> None:
    """What produce_kernel does for one call, and then a kernel that copies, and consume_kernel: slowly, on the arena."""
    memory, slots = production.buffers.view.numpy(), production.layout.slots

    def word(name: str, at: int) -> int:
        return int.from_bytes(memory[message[name] + 8 * at : message[name] + 8 * at + 8].tobytes(), "little")

    key = mix_number(word("secrets", slot) ^ word("digests", (slot - 1) % slots))
    for t, (first, stride, size, a, x, b, packs, steps) in enumerate(message["pieces"]):
        at_a = mix_number((key + 2 * t) & neighbours._M64) % steps * 16
        at_b = mix_number((key + 2 * t + 1) & neighbours._M64) % message["steps"] * 16
        for i in range(size):
            masked = int(memory[b + at_b + i % (16 * packs)]) & (int(memory[x + at_a + i]) if x >= 0 else 0xFF)
            memory[first + slot * stride + i] = int(memory[a + at_a + i]) ^ masked
    for first, stride, size in message["poisoned"]:
        memory[first + slot * stride : first + slot * stride + size] = 0xFF
    (read, by, size, *_), (write, to, _) = message["pieces"][0], message["outputs"][0]
    memory[write + slot * to : write + slot * to + size] = memory[read + slot * by : read + slot * by + size]
    outputs = [memory[f + slot * s : f + slot * s + n].tobytes() for f, s, n in message["outputs"]]
    at = message["digests"] + 8 * slot
    memory[at : at + 8] = bytearray(slow_digest(outputs).to_bytes(8, "little"))


def two_inputs(dtype: str, n: int, kinds: tuple[str, str]) -> tuple[Spec, Workload]:
    spec, workload = described(dtype, kinds[0], n)
    more = (
        Tensor(name="more", role="inout", shape=("3",), dtype="float16", values=(kinds[1],)),
        Tensor(name="table", role="input", shape=("5",), dtype="float32", constant=True),
    )
    return spec.model_copy(update={"arguments": (*spec.arguments, *more)}), workload


@pytest.mark.parametrize(
    ("dtype", "n", "kinds"),
    [
        ("float32", 37, ("ordinary", "zeros")),
        ("float16", 1, ("uniform", "ordinary")),
        ("int8", 13, ("ordinary", "large")),
        ("bfloat16", 40, ("zeros", "infinities")),
        ("int64", 9, ("index:limit", "range:-2:3")),
        ("float8_e4m3fn", 33, ("ordinary", "tiny")),
    ],
)
def test_the_parent_makes_a_gpus_inputs_once_more_to_the_bit(
    opened: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, n: int, kinds: tuple[str, str]
) -> None:
    monkeypatch.setattr(neighbours, "ROUND_BYTES", 32)
    production = opened(*two_inputs(dtype, n, kinds), "cuda")
    seen = []
    for _ in range(2):
        production.renew()
        message = production.message("plain")
        for slot in range(production.layout.slots):
            produced(production, message, slot)
        for slot in range(production.layout.slots):
            made = production.inputs(slot)
            for tensor in production.spec.inputs:
                lies = production.layout.view(production.buffers, tensor)[production.layout.copy(tensor, slot)]
                assert torch.equal(raw_bits(made[tensor.name]), raw_bits(lies))
            assert production.digests_agree(slot)
            seen.append(raw_bits(made["input"]).tolist())
    if n > 8:
        assert all(one != other for one, other in itertools.combinations(seen, 2))
    out = production.layout.bytes_view(production.buffers, production.spec.outputs[0])
    out[2, -1] ^= 1
    assert not production.digests_agree(2) and production.digests_agree(1)


def test_a_gpus_calls_depend_on_what_was_read_before(opened: Any) -> None:
    """Another output of the call before, and the inputs are others: none can be made before that one has ended."""
    production = opened(*two_inputs("float32", 64, ("ordinary", "ordinary")), "cuda")
    production.renew()
    message = production.message("plain")
    produced(production, message, 0)
    before = production._offsets(1)
    assert production._offsets(0) != before
    production._words("digests")[0] += 1
    assert all(one != other for one, other in zip(production._offsets(1), before, strict=True))
    first = production._offsets(0)
    production.renew()
    assert production._offsets(0) != first


@pytest.mark.parametrize(("name", "programmatic", "neighbour"), [("plain", 0, 0), ("pdl", 1, 1), ("early", 1, 2)])
def test_a_company_is_told_how_to_launch(opened: Any, name: str, programmatic: bool, neighbour: int) -> None:
    message = opened(*two_inputs("float32", 64, ("ordinary", "zeros")), "cuda").message(name)
    assert (message["programmatic"], message["neighbour"], message["apart"]) == (programmatic, neighbour, False)
    ordinary, zeros = message["pieces"]
    assert ordinary[4] == -1 and zeros[4] >= 0, "x is read where it says something"
    assert len(message["poisoned"]) == 1 and len(message["outputs"]) == 2, "what is written in place is not poisoned"
    assert message["evict"][1:] == [4096, 1], "with constants, what asks to stay is evicted too"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_constants_are_drawn_again_and_never_change_unseen(opened: Any, device: str) -> None:
    kernel, workload = negation("float32", 16, table=37)
    production = opened(kernel.spec, workload, device)
    table = next(t for t in kernel.spec.inputs if t.name == "table")
    raw = production.layout.bytes_view(production.buffers, table)
    first, single = raw.clone(), 0
    for _ in range(40):
        before = raw.clone()
        production.renew()
        changed = (raw != before).view(3, 37, 4).any(2)
        assert int(changed.sum()) >= 1 and int(changed.any(1).sum()) == 1, "one copy a sample, some of it"
        single += int(changed.sum()) == 1
        assert production.constants_intact() == ""
        assert all(torch.equal(kept, now) for kept, now in zip(production.constants["table"], raw, strict=True))
    assert 0 < single < 40, "now a single element, now all of them"
    assert float((raw != first).float().mean()) > 0.9
    raw[2, 147] ^= 1
    assert production.constants_intact() == "table"


def test_of_a_large_constant_a_part_is_drawn_again(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(neighbours.REDRAWN_BYTES, "cpu", 40)
    kernel, workload = negation("float32", 16, table=1000)
    production = opened(kernel.spec, workload, "cpu", copies=1)
    table = next(t for t in kernel.spec.inputs if t.name == "table")
    values = production.layout.view(production.buffers, table)[0]
    touched = set()
    for _ in range(60):
        before = values.clone()
        production.renew()
        at = (values != before).nonzero().flatten().tolist()
        assert 1 <= len(at) <= 10 and at[-1] - at[0] < 10
        touched |= set(at)
    assert len(touched) > 200, "and not always the same part"


def test_on_a_cpu_the_inputs_of_a_set_are_known_until_it_is_written_again(opened: Any) -> None:
    spec, workload = two_inputs("float16", 77, ("ordinary", "uniform"))
    production = opened(spec, workload, "cpu")
    production.produce([0, 1, 2, 3])
    production.produce([2, 0])
    for slot in range(4):
        for name, made in production.inputs(slot).items():
            tensor = next(t for t in spec.inputs if t.name == name)
            lies = production.layout.view(production.buffers, tensor)[production.layout.copy(tensor, slot)]
            assert torch.equal(raw_bits(made), raw_bits(lies)) and made.shape == spec.shape(tensor, workload.axes)
    out = production.layout.bytes_view(production.buffers, spec.outputs[0])
    assert bool((out == 0xFF).all())
    out.zero_()
    production.produce([3])
    assert bool((out[3] == 0xFF).all()) and not bool(out[:3].any())


@pytest.mark.parametrize("name", catalog.names())
def test_the_kernels_of_the_catalog_can_be_made_inputs_for(opened: Any, name: str) -> None:
    spec = catalog.load(name).spec
    workload = min(spec.suite("cpu"), key=spec.read_bytes)
    production = opened(spec, workload, "cpu", slots=2, copies=2)
    production.produce([0, 1])
    assert set(production.inputs(1)) == {tensor.name for tensor in spec.inputs}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("other", ["zeros", "large", "uniform"])
def test_one_sample_has_another_distribution_and_the_next_one_its_own(opened: Any, device: str, other: str) -> None:
    """Constants too; what is held against them later is what lies there."""
    spec, workload = two_inputs("float32", 4096, ("ordinary", "ordinary"))
    extra = {"input": (other,), "table": (other,)}
    production = opened(spec, workload, device)
    table = next(tensor for tensor in spec.inputs if tensor.name == "table")
    before = production.mixtures[0].a.clone()
    with production.drawn_as(other, extra) as changed:
        assert changed
        production.renew()
        if device == "cpu":
            production.produce([0, 1])
        made = production.inputs(1)["input"]
        whole = production.mixtures[0].a.view(torch.float32)
        assert bool(torch.isin(made, whole).all()), "every value is one that was drawn so"
        spread = {
            "zeros": (made == 0).double().mean() > 0.4,
            "large": made.abs().max() > 40,
            "uniform": made.min() >= 0,
        }
        assert bool(spread[other])
        assert torch.equal(production.layout.bytes_view(production.buffers, table), production.constants["table"])
    production.renew()
    assert torch.equal(production.mixtures[0].a, before) and not production.still
    assert production.constants_intact() == ""
    with production.drawn_as("range:7:9", extra) as changed:
        assert not changed, "nobody knows it"
