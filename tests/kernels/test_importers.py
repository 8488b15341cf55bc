"""Every importer keeps its contract; the starter suite is in the form; a problem's description is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import importers, suites
from kernels.catalog import KernelError
from kernels.importers import kernelbench, sol_execbench
from tests.kernels.definitions import flashinfer, sol

STARTER = suites.problems("starter")


@pytest.mark.parametrize("name", importers.names())
def test_an_importer_has_what_the_folder_promises(name: str):
    module = importers.get(name)
    assert module.__doc__
    for part in ("takes", "title", "read"):
        assert callable(getattr(module, part)), part


@pytest.mark.parametrize("name", importers.names())
def test_an_importer_takes_no_other_file(name: str, tmp_path: Path):
    module = importers.get(name)
    for text, suffix in (("int main() {}", ".cpp"), ("x = 1\n", ".py"), ("class Model:\n    pass\n", ".py")):
        path = tmp_path / f"some{suffix}"
        path.write_text(text)
        assert not module.takes(path)
    assert not module.takes(tmp_path / "missing.py") and not module.takes(tmp_path)


def test_no_file_is_of_two_formats_and_each_format_reads_its_own(tmp_path: Path):
    own = {"kernelbench": STARTER[0], "flashinfer_bench": flashinfer(tmp_path), "sol_execbench": sol(tmp_path)}
    assert set(own) == set(importers.names())
    for name, path in own.items():
        assert [other for other in importers.names() if importers.get(other).takes(path)] == [name]
        problem = importers.get(name).read(path)
        assert isinstance(problem.title, kernelbench.Title) and problem.title == importers.title(path)
        assert path in problem.files and compile(problem.module, name, "exec")
        for answer in (None, [], "x", {"unfit": "it is not"}, {"arguments": 1}):
            with pytest.raises(KernelError, match="makes no sense|it is not") as caught:
                problem.check_answer(answer)
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_folders_of_definitions_are_suites_too(tmp_path: Path):
    path, other = flashinfer(tmp_path / "fib"), sol(tmp_path / "sol")
    assert suites.problems(str(tmp_path / "fib")) == [path] and suites.problems(str(tmp_path / "sol")) == [other]
    assert suites.problems(str(tmp_path / "sol" / "L1")) == [other]
    assert sol_execbench.title(other).label == "gather_norm" and sol_execbench.title(other).level == 1


def test_the_starter_suite_has_three_levels_of_known_problems():
    assert len(STARTER) >= 16
    titles = [kernelbench.title(path) for path in STARTER]
    assert {title.level for title in titles} == {1, 2, 3}
    numbers = [(title.level, title.number) for title in titles]
    assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers)
    assert all(importers.for_file(path) is kernelbench for path in STARTER)


def test_titles_come_from_the_path(tmp_path: Path):
    assert kernelbench.title(tmp_path / "level1" / "23_Softmax.py").label == "level 1, 23 Softmax"
    assert kernelbench.title(tmp_path / "mine.py").label == "mine"
    assert kernelbench.spec_name(kernelbench.title(tmp_path / "level2" / "4_A_ReLU__(x).py")) == "l2_4_a_relu_x"


@pytest.mark.parametrize(
    ("suite", "levels", "said"),
    [("/nowhere", (), "is no folder"), ("starter", (7,), "has no level 7"), ("EMPTY", (), "it has no folder level1")],
)
def test_a_folder_that_is_no_suite_is_one_sentence(suite: str, levels: tuple[int, ...], said: str, tmp_path: Path):
    with pytest.raises(KernelError, match=said):
        suites.problems(str(tmp_path) if suite == "EMPTY" else suite, levels)


def test_a_checkout_is_a_suite_too(tmp_path: Path):
    for name in ("10_B.py", "9_A.py", "_private.py"):
        (tmp_path / "KernelBench" / "level1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "KernelBench" / "level1" / name).write_text("")
    (tmp_path / "KernelBench" / "level4").mkdir()
    assert [path.name for path in suites.problems(str(tmp_path))] == ["9_A.py", "10_B.py"]


def description(**changes) -> dict:
    given = {"shape": [8, 4], "dtype": "float32", "leading": True, "values": ["uniform"], "matters": True}
    found = {
        "arguments": {"l": [{"t": 0}]}, "inputs": [given], "outputs": [{"shape": [[1, 0], [0, 4]], "dtype": "float32"}],
        "sizes": [1, 3], "alternatives": [], "fp64": True, "random": False, "weight_bytes": 0,
    }  # fmt: skip
    return found | changes


def test_a_description_becomes_a_spec():
    found = kernelbench.check_description(description(), Path("p.py"))
    spec = kernelbench.spec(kernelbench.title(Path("level1/1_A.py")), found, "t", most_bytes=1 << 30)
    assert [tensor.name for tensor in spec.tensors] == ["input_0", "output_0"]
    assert spec.problem and spec.shape(spec.outputs[0], {"lead": 8}) == (8, 4)
    assert [w.axes["lead"] for w in spec.suite("cpu", held_out=True)] == [1, 3]
    assert [w.axes["lead"] for w in spec.suite("cpu")] == [8]


@pytest.mark.parametrize(
    "answer",
    [
        None, [], "x", {"arguments": 1}, description(outputs=[]), description(sizes="many"),
        description(inputs=[{"shape": [8], "dtype": "complex64", "leading": True, "values": ["uniform"], "matters": True}]),
        description(extra=1), description(weight_bytes=-1), description(arguments=float("nan"), sizes=[object()]),
    ],
)  # fmt: skip
def test_a_description_that_makes_no_sense_is_one_sentence(answer: object):
    with pytest.raises(KernelError, match="makes no sense"):
        kernelbench.check_description(answer, Path("p.py"))


def test_a_problem_too_large_is_made_with_fewer_rows_or_refused():
    title = kernelbench.title(Path("level1/1_A.py"))
    found = kernelbench.check_description(description(), Path("p.py"))
    spec = kernelbench.spec(title, found, "t", most_bytes=128)
    assert spec.suite("cpu")[0].axes["lead"] == 4 and [w.axes["lead"] for w in spec.suite("cpu", held_out=True)] == [
        1,
        3,
    ]
    fixed = kernelbench.check_description(description(sizes=[]), Path("p.py"))
    with pytest.raises(KernelError, match="needs more memory than there is"):
        kernelbench.spec(title, fixed, "t", most_bytes=128)


def test_a_shuffled_suite_has_every_problem_once_and_a_part_of_it_is_a_sample_of_every_level(tmp_path: Path):
    for level, count in ((1, 20), (2, 20), (3, 10)):
        (tmp_path / f"level{level}").mkdir()
        for number in range(1, count + 1):
            (tmp_path / f"level{level}" / f"{number}_P.py").touch()
    files = suites.problems(str(tmp_path))
    found = suites.shuffle(files, 7)
    assert sorted(found) == sorted(files) and found == suites.shuffle(files[::-1], 7) != suites.shuffle(files, 8)
    for part in (5, 10, 25):
        by_level = [sum(path.parent.name == f"level{level}" for path in found[:part]) for level in (1, 2, 3)]
        assert by_level == [part * 2 // 5, part * 2 // 5, part // 5]
    assert [path.name for path in found if path.parent.name == "level1"] != [path.name for path in files[:20]]


@pytest.mark.parametrize(
    "more", [{}, {"initial": None}, {"initial": {"v": 3}}], ids=["of the same kind", "nothing", "a number"]
)
def test_what_a_state_is_before_the_first_call_survives_a_record(more: dict):
    """Nothing before it and not given are two things to the box (module_state.place_entries)."""
    entry = kernelbench.StateEntry(path="bn", name="calls", form={"t": 0}, leaves=(((), "int64"),), **more)
    again = kernelbench.StateEntry.model_validate_json(entry.model_dump_json())
    assert again.describe_for_box() == entry.describe_for_box()
    assert ("initial" in again.describe_for_box()) == bool(more)
