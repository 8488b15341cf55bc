"""The same of every rewrite: it applies to its examples, once, and writes what parses and computes the same; it leaves alone what only
looks like them."""

from __future__ import annotations

import functools

import pytest

from harness import device
from harness.records import DeviceFacts
from nodes.policies.search import apply_step
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites import cpp_examples
from tests.nodes.rewrites.emulate.texts import Text, differences
from tests.nodes.rewrites.examples import FORMS, LAUNCHES, NOT_IN_PACKS, VECTORS, Example
from tests.nodes.rewrites.steps import H200, after, flat

CUDA = {**FORMS, **VECTORS, **LAUNCHES}
EXAMPLES = {**CUDA, **cpp_examples.EXAMPLES}
LEFT = [*(("vectorize", text) for text in NOT_IN_PACKS.values()), *cpp_examples.LEFT.items()]
AVX512 = DeviceFacts(
    device="cpu", name="", architecture="avx512f", units=2, last_level_cache_bytes=4 << 20, bandwidth_gbps=40.0
)  # fmt: skip
HERE = device.facts("cpu").architecture
OTHERS = {"refine_search"}
"""It writes numbers: test_specialize.py."""


def text_of(example: Example) -> Text:
    return Text("cuda" if "cudaStream_t" in example.text else "cpu", example.text, flags=example.flags)


def facts(example: Example) -> Facts:
    text = text_of(example)
    return Facts(spec=text.spec, device=H200 if text.language == "cuda" else AVX512)


@functools.cache
def ahead(example: Example) -> str:
    """What the last step is given."""
    return after(example.text, *example.steps.split()[:-1], facts=facts(example))


@functools.cache
def behind(example: Example) -> str:
    return after(ahead(example), example.steps.split()[-1], facts=facts(example))


def test_every_rewrite_has_an_example_and_what_it_leaves_alone() -> None:
    every = catalog().keys() - OTHERS
    assert {example.steps.split()[-1] for example in EXAMPLES.values()} == every
    refusing = {example.steps.split()[-1] for example in EXAMPLES.values() if example.but}
    assert every - refusing == {"free_reserved_names"}
    for rewrite in catalog().values():
        assert rewrite.languages and rewrite.expected and rewrite.helps, rewrite.name


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rewrite_applies_to_its_example_once(name: str) -> None:
    example = EXAMPLES[name]
    new, step = behind(example), example.steps.split()[-1]
    assert not Source(new, text_of(example).language).root.has_error
    assert apply_step(step, new, facts(example)) is None, "it applies twice"
    for words in example.reads:
        assert flat(words) in flat(new), f"{words}\n{new}"


def test_what_examples_become_computes_what_they_compute() -> None:
    """C++ in lanes where the processor has them."""
    chosen = {name: e for name, e in EXAMPLES.items() if "explicit_simd" not in e.steps or HERE.startswith("avx512")}
    pairs = [(text_of(example), behind(example)) for example in chosen.values()]
    wrong = {name: said for name, said in zip(chosen, differences(pairs), strict=True) if said}
    assert not wrong, wrong


BESIDE = [(name, n) for name, example in EXAMPLES.items() for n in range(len(example.but))]


@pytest.mark.parametrize(("name", "number"), BESIDE)
def test_what_only_looks_like_an_example_stays(name: str, number: int) -> None:
    example, text = EXAMPLES[name], ahead(EXAMPLES[name])
    old, new = example.but[number]
    assert old in text, old
    behind(example)
    assert apply_step(example.steps.split()[-1], text.replace(old, new, 1), facts(example)) is None, new


@pytest.mark.parametrize(("step", "text"), LEFT)
def test_what_else_stays(step: str, text: str) -> None:
    assert apply_step(step, text, facts(Example(step, text))) is None
