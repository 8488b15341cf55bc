"""Replies are hostile until they parsed: whatever comes, it is an answer or Unfit."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records import Timing
from harness.store import digest
from nodes.policies import answers
from nodes.policies.prices import Prices
from nodes.policies.replies import REPLY_CHARS, UnfitReply, as_file
from tests.nodes.policies.examples import ODD, OTHER, SOURCE, VISIBLE, for_planner, for_profiler, for_tester, timing
from tests.nodes.policies.test_chat import A_PLAN, EDIT, EDITED, FINDING, PLANS, SINGLE

READERS: dict[str, Callable[[str], object]] = {
    "tests": lambda text: answers.tests(text, for_tester()),
    "finding": lambda text: answers.finding(text, for_profiler()),
    "plans": lambda text: answers.plans(text, for_planner()),
    "code": lambda text: answers.code(text, SOURCE),
    "single": lambda text: answers.single(text, for_planner()),
}
WORDS = [
    "{", "}", '"', "```", "```json", "```cuda", "\n", "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE",
    '{"format": "file"}', '{"format": "edit"}', "#define BLOCK 128  // tune: 64 128 256",
    "\x00", "\ud800", "NaN", "1e999", "[" * 50, "plans", ":", ",",
    json.dumps(PLANS), json.dumps(FINDING), json.dumps(A_PLAN), EDIT, SINGLE,
]  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=5)), max_size=12).map("".join))
def test_anything_is_an_answer_or_unfit(name: str, text: str) -> None:
    try:
        READERS[name](text)
    except UnfitReply as unfit:
        assert str(unfit)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "text", ["", "{" * 100_000, "[" * 100_000, '{"a":' * 50_000, "x" * 500_000, '{"plans": ' + "9" * 10_000 + "}"],
    ids=["empty", "braces", "brackets", "deep", "long", "digits"],
)  # fmt: skip
def test_sizes_and_depths_are_bounded(name: str, text: str) -> None:
    with pytest.raises(UnfitReply):
        READERS[name](text)


FILE = '```json\n{"format": "file", "notes": "n"}\n```\n\n```cuda\nint a;\n```\n'


@pytest.mark.parametrize(
    "reply",
    [
        FILE,
        'Sure!\n{"format": "file", "notes": "n"}\n```\nint a;\n```',
        FILE.replace("```cuda", "````cpp").replace("a;\n```", "a;\n````"),
    ],
)
def test_a_whole_file(reply: str) -> None:
    assert answers.code(reply, SOURCE) == ("int a;\n", "n")


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (FILE + FILE[FILE.index("```cuda") :], "exactly one fenced block with the whole file after the header, not 2"),
        (FILE.rstrip().removesuffix("```"), "not closed"),
        (FILE.replace("int a;", SOURCE), "the same as before"),
        (FILE.replace("int a;", "x" * 300_000), "longer than 256000 bytes"),
        (FILE.replace("int a;", "#define A 1  // tune: 1 2\n#define A 2  // tune: 1 2"), "defined twice"),
        (FILE.replace("file", "patch"), "format: Input should be 'file', 'edit' or 'none'"),
        ("int main() { return 0; }", "must begin with the JSON header"),
        (EDIT.replace(">>>>>>> REPLACE", ""), "is not finished"),
        (EDIT.replace("BLOCK 128", "BLOCK  128"), "occurs 0 times"),
        (EDIT.replace("BLOCK 128", "BLOCK  128"), "exact spaces (line 3 is most like its first one)"),
        (
            EDIT.replace("#define BLOCK 128  // tune: 64 128 256", "BLOCK", 1),
            "it stands on lines 3, 6: copy lines around",
        ),
        (EDIT.replace("#define BLOCK 128  // tune: 64 128 256\n=", "=", 1), "the search text is empty"),
        ('{"format": "edit", "notes": ""}\nno blocks', "no SEARCH/REPLACE block"),
    ],
)
def test_what_a_coder_may_not_answer(reply: str, complaint: str) -> None:
    with pytest.raises(UnfitReply) as caught:
        answers.code(reply, SOURCE)
    assert complaint in str(caught.value)


HEADER = '{"format": "file", "notes": "n"}'
THOUGHTS = "The loop `for (...) { x[i] = {0}; }` reads {twice}.\n"
ONE_EDIT = EDIT[EDIT.index("<<<<<<<") :]


@pytest.mark.parametrize(
    ("reply", "source"),
    [
        (THOUGHTS + FILE, "int a;\n"),
        (f"<think>{THOUGHTS}{{\"format\": \"edit\"}}\n```\nint b;\n```</think>\n{FILE}", "int a;\n"),
        (f"{THOUGHTS}```cuda\nint b;\n```</think>{FILE}", "int a;\n"),
        ("Here is the file.\n```cuda\nint a;\n```\nIt reads once.", "int a;\n"),
        (FILE.replace("```cuda", '```cuda title="kernel.cu"'), "int a;\n"),
        (FILE.replace("```cuda", "```cpp kernel.cu"), "int a;\n"),
        (FILE.replace("```cuda", "```cuda:kernel.cu"), "int a;\n"),
        (FILE + "\nBuild it with\n```bash\nnvcc -O3 kernel.cu\n```\n", "int a;\n"),
        (HEADER + "\n```text\nbefore: 2 loads\n```\n```\nint a;\n```\n", "int a;\n"),
        (ONE_EDIT, EDITED),
        ("I shrink the block.\n\n" + ONE_EDIT, EDITED),
        (HEADER + "\n" + ONE_EDIT, EDITED),
        (EDIT.replace("64 128 256\n=", "64 128 256   \n="), EDITED),
        (EDIT.replace("<<<<<<< SEARCH\n", "<<<<<<< SEARCH\n  \n").replace("=======\n", "=======\n\n"), EDITED),
    ],
    ids=["prose with braces", "thinking", "thinking without its first tag", "no header", "title", "file name", "colon and name",
         "a second fence", "an unlabelled one and text", "edits alone", "edits after prose", "edits named a file",
         "spaces at line ends", "an empty line that has spaces"],
)  # fmt: skip
def test_what_models_write_is_taken(reply: str, source: str) -> None:
    assert answers.code(reply, SOURCE)[0] == source


def test_json_is_found_behind_prose_and_thoughts() -> None:
    for before in (THOUGHTS, f"<think>{json.dumps({**FINDING, 'bound': 'compute'})}</think>", 'Like {"a": 1}, but: '):
        assert answers.finding(before + json.dumps(FINDING) + "\nThat is {all}.", for_profiler()).bound == "memory"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("\n".join(f"#define {name} 1  // tune: 1 2" for name in "ABCD"), "4 integers are left open (A, B, C, D)"),
        ("#define A 3  // tune: 1 2 4", "A is 3, which is none of its choices (1, 2, 4)"),
        ("#define A 1  // tune: 1, 2, 4", "leaves nothing open: the form is"),
        ("constexpr int A = 1;  // tune: 1 2 4", "leaves nothing open: the form is"),
    ],
)  # fmt: skip
def test_what_no_search_could_take_is_refused(lines: str, complaint: str) -> None:
    with pytest.raises(UnfitReply) as caught:
        answers.code(FILE.replace("int a;", lines), SOURCE)
    assert complaint in str(caught.value)
    assert answers.code(FILE.replace("int a;", lines + "\nint a;"), lines)[0].endswith("int a;\n"), "the base's own"


def test_edits_apply_in_order_also_inside_a_fence() -> None:
    second = (
        "<<<<<<< SEARCH\n#define BLOCK 64  // tune: 32 64\n=======\n#define BLOCK 32  // tune: 32 64\n>>>>>>> REPLACE\n"
    )
    source, _ = answers.code(EDIT.replace("\n\n<", "\n\n```\n<") + second + "```\n", SOURCE)
    assert source == EDITED.replace("BLOCK 64", "BLOCK 32")
    deleted, _ = answers.code(EDIT.replace("\n#define BLOCK 64  // tune: 32 64\n>", "\n>"), SOURCE)
    assert deleted == SOURCE.replace("#define BLOCK 128  // tune: 64 128 256\n", "")
    windows, _ = answers.code(EDIT.replace("\n", "\r\n"), SOURCE.replace("\n", "\r\n"))
    assert windows == EDITED


@pytest.mark.parametrize(
    ("reply", "notes"),
    [
        ('{"format": "edit", "notes": "wider"}\n' + EDIT, "wider"),
        ('<think>{"format": "edit", "notes": "no"}</think>\n{"format": "edit", "notes": "yes"}\n', "yes"),
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", ""),
    ],
)
@pytest.mark.parametrize("source", ["int x;\n", "// ```\nint x;\n", "// `````` and `\nint x;\n\n"])
def test_an_answer_of_edits_becomes_one_with_the_whole_file(reply: str, notes: str, source: str) -> None:
    """Which says the same of itself, also where it said nothing; and fences inside the file do not end it."""
    found, said = answers.code(as_file(reply, source), "int y;\n")
    assert found.rstrip() == source.rstrip() and said == notes


def test_a_finding_keeps_the_measured_figures() -> None:
    forged = {**FINDING, "numbers": [{"name": "cold_percent_of_sol", "value": 99}, {"name": "../x", "value": 1}]}
    found = answers.finding(json.dumps(forged), for_profiler())
    assert found.numbers == {
        "cold_percent_of_sol": 40.0,
        "hot_percent_of_sol": 50.0,
        "speedup": pytest.approx(1.118, abs=1e-3),
    }


def test_what_was_measured_is_said_without_a_model() -> None:
    """The slowest half of the workloads first, each by the worst of its caches, and of the probes those that answered."""

    def of(rows: int, cache: str, light_us: float) -> Timing:
        workload = VISIBLE.model_copy(update={"axes": {"rows": rows, "columns": 8}})
        return timing(cache=cache).model_copy(update={"workload": workload, "light_us": light_us})

    shares = [(1, "cold", 3.0), (2, "cold", 1.0), (1, "hot", 0.5), (3, "hot", 2.0), (4, "hot", 3.5), (5, "hot", 3.6)]
    found = answers.compute_finding(for_profiler(timings=tuple(of(*share) for share in shares)))
    assert found.summary == "measured figures only; ptxas: add 18 registers, 0 spills"
    assert [label.partition(" columns")[0] for label in found.slow_workloads] == [
        f"float16 rows={rows}" for rows in (1, 2)
    ]
    assert found.light_fraction == pytest.approx(0.458, abs=1e-3) and found.bound == "unknown"
    assert answers.compute_finding(for_profiler(timings=())).light_fraction is None


def test_plans_are_named_by_their_content() -> None:
    first = answers.plans(json.dumps(PLANS), for_planner())
    assert first == answers.plans(json.dumps(PLANS, indent=3), for_planner())
    assert first[0].id != first[1].id


def test_that_there_is_no_plan_needs_a_reason() -> None:
    with pytest.raises(UnfitReply, match="give at least one plan, or say in nothing_left why"):
        answers.plans(json.dumps({"plans": [], "nothing_left": ""}), for_planner())
    assert answers.plans(json.dumps({"plans": [], "nothing_left": "all was tried"}), for_planner()) == ()


def test_a_step_that_is_no_rewrite_is_named() -> None:
    steps = ["restrict_pointers", "think_harder"]
    reply = json.dumps({"plans": [{**A_PLAN, "steps": steps}], "nothing_left": ""})
    with pytest.raises(UnfitReply, match="steps: 'think_harder' is not the name of a rewrite"):
        answers.plans(reply, for_planner(), steps[:1])
    assert answers.plans(reply, for_planner(), steps)[0].steps == tuple(steps)


def test_a_doubt_about_the_spec_is_kept() -> None:
    doubt = {"spec_doubt": "the mask is always one"}
    assert answers.finding(json.dumps(FINDING | doubt), for_profiler()).spec_doubt == doubt["spec_doubt"]
    assert {plan.spec_doubt for plan in answers.plans(json.dumps(PLANS | doubt), for_planner())} == {
        doubt["spec_doubt"]
    }


def test_a_review_agrees_or_says_why_not() -> None:
    assert answers.review('{"agrees": true, "reason": ""}').agrees
    objection = answers.review('{"agrees": false, "reason": "it was tried"}')
    assert (objection.agrees, objection.reason) == (False, "it was tried")
    with pytest.raises(UnfitReply, match="say what is wrong and what would mend it"):
        answers.review('{"agrees": false, "reason": " "}')


def test_a_workload_of_other_axes_is_refused_with_those_that_it_has() -> None:
    request = for_tester()
    proposed = {"axes": [{"axis": "nothing", "size": 3}], "dtype": request.spec.dtypes[0]}
    with pytest.raises(UnfitReply, match=f"must be exactly {', '.join(request.spec.axes)}; one has nothing"):
        answers.tests(json.dumps({"workloads": [proposed], "values": [], "reasons": ""}), request)
    with pytest.raises(UnfitReply, match="one has none"):
        answers.tests(json.dumps({"workloads": [{**proposed, "axes": []}], "values": [], "reasons": ""}), request)


def test_what_a_tester_adds_is_new_and_can_be_drawn() -> None:
    request = for_tester()

    def sized(rows: int, columns: int) -> dict[str, object]:
        return {"axes": [{"axis": "columns", "size": columns}, {"axis": "rows", "size": rows}], "dtype": "bfloat16"}

    def reply(workloads: list[dict[str, object]], values: list[tuple[str, str]]) -> str:
        named = [{"tensor": tensor, "values": name} for tensor, name in values]
        return json.dumps({"workloads": workloads, "values": named, "reasons": ""})

    known = sized(ODD.axes["rows"], ODD.axes["columns"])
    values = [("y", "large"), ("y", "zeros"), ("weights", "uniform"), ("y", "zeros"), ("y", "outliers")]
    found = answers.tests(reply([known, sized(5, 9), sized(5, 9)], values), request)
    assert [(w.axes, w.timed) for w in found.workloads] == [({"rows": 5, "columns": 9}, False)]
    assert found.values == {"y": ("zeros", "outliers"), "weights": ("uniform",)}  # `large` is there already
    assert answers.tests(reply([known], []), request).values == {}
    with pytest.raises(UnfitReply, match=r"'rows' is no floating-point input \(those are x, y, weights\)"):
        answers.tests(reply([], [("rows", "zeros")]), request)


def test_names_with_values_may_be_an_object() -> None:
    """A hand that was shown no schema wrote axes so."""
    axes = {"rows": 5, "columns": 9}
    proposed = {"workloads": [{"axes": axes, "dtype": "bfloat16"}], "values": [], "reasons": "a tail"}
    (added,) = answers.tests(json.dumps(proposed), for_tester()).workloads
    assert added.axes == axes
    said = {"bound": "memory", "summary": "s", "numbers": {"loads_in_flight": 2}, "slow_workloads": []}
    assert answers.finding(json.dumps(said), for_profiler()).numbers["loads_in_flight"] == 2


def test_a_plan_starts_from_the_source_that_it_names() -> None:
    other = digest(OTHER)

    def starting_at(base: str) -> str:
        reply = json.dumps({"plans": [{**A_PLAN, "base": base}], "nothing_left": ""})
        return answers.plans(reply, for_planner())[0].base

    assert starting_at("") == digest(SOURCE)
    assert starting_at(other[:12]) == starting_at(f" {other} ") == starting_at(other[:8]) == other
    for base in (other[:7], "0" * 12):
        with pytest.raises(UnfitReply, match=f"base: '{base}' is not the hash of a source that passed"):
            starting_at(base)


@pytest.mark.parametrize("draft", [answers.TestsDraft, answers.FindingDraft, answers.PlansDraft, answers.ReviewDraft])
def test_a_schema_asks_for_every_property_and_no_other(draft: type[answers.ReplyDraft]) -> None:
    """As strict structured outputs want it; a limit is checked when the answer is in."""
    objects = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            objects.extend([node] if node.get("type") == "object" else [])
            assert not {"maxLength", "minItems", "default", "minimum"} & set(node)
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(inner)

    schema = answers.wire_schema(draft)
    walk(schema)
    assert list(schema["properties"]) == list(draft.model_fields)
    assert objects and all(o["required"] == list(o["properties"]) and not o["additionalProperties"] for o in objects)


def test_an_answer_may_be_as_long_as_it_may_be() -> None:
    longest = FILE + " " * (REPLY_CHARS - len(FILE))
    assert answers.code(longest, SOURCE)[0] == "int a;\n"
    with pytest.raises(UnfitReply, match="the answer is longer than"):
        answers.code(longest + " ", SOURCE)


def test_the_file_of_an_answer_is_taken_out_of_it() -> None:
    assert answers.whole_file(FILE) == "int a;\n"
    assert answers.whole_file(EDIT) == answers.whole_file("no") == ""
    assert answers.apply_edits(EDIT, SOURCE) == EDITED
    assert (
        answers.apply_edits(EDIT, "") == answers.apply_edits(FILE, SOURCE) == answers.apply_edits(EDIT, "int b;") == ""
    )


def test_listed_prices_are_for_their_own_server_only() -> None:
    listed = Prices()
    assert listed.of("gpt-5-2025-08-07") == listed.of("gpt-5") is not None
    assert listed.of("gpt-5-something") is None
    assert Prices(base_url="http://127.0.0.1:8001/v1").of("gpt-5") is None
