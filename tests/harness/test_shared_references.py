"""References of a problem in one process answer as they do each in its own; where Model cannot be loaded twice they part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.problems import box
from harness.problems.pytorch import Problem, open_problem

HEAD = "import torch\nfrom torch import nn\n\n\n"
INPUTS = "\n\ndef get_inputs():\n    return [torch.randn(16, 33)]\n"
MODELS = {
    "linear": """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(33, 33)

    def forward(self, x):
        return self.linear(x) + torch.ones(33)
""",
    "state": """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(33)

    def forward(self, x):
        return self.norm(x)
""",
    "chance": """class Model(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5)
""",
    "operator": """library = torch.library.Library("shared_references", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")


class Model(nn.Module):
    def forward(self, x):
        return torch.ops.shared_references.twice(x)
""",
    "later": """def count():
    found = getattr(torch, "counted_here", 0)
    torch.counted_here = found + 1
    return found


class Model(nn.Module):
    def forward(self, x):
        if count() > 20:
            raise RuntimeError("once a process")
        return x + 1
""",
}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Problem]]:
    found: list[Problem] = []

    def open_(name: str) -> Problem:
        path = tmp_path / f"problem_{name}.py"
        path.write_text(HEAD + MODELS[name] + INPUTS)
        found.append(open_problem(path, "cpu"))
        return found[-1]

    yield open_
    for problem in found:
        problem.close()


def answers(problem: Problem) -> tuple[list[dict[str, Any]], set[int]]:
    """Of both references in turn, and the processes that they are in."""
    workload, spec = problem.spec.workloads[0], problem.spec
    torch.manual_seed(3)
    given = {}
    for tensor in spec.inputs:
        shape = [
            int(workload.axes.get(extent, extent)) if isinstance(extent, str) else extent for extent in tensor.shape
        ]
        is_float = "float" in spec.dtype(tensor, workload)
        given[tensor.name] = torch.rand(shape) if is_float else torch.zeros(shape, dtype=torch.int64)
    found = [problem.reference_in(dtype, **given, **workload.axes) for dtype in ("float64", "float32") * 2]
    assert problem.box is not None
    alive = [one for name, one in problem.box.workers.items() if not name.startswith("inputs") and one.alive]
    return found, {one.process.pid for one in alive}


@pytest.mark.parametrize("name", ["linear", "state", "chance"])
def test_references_in_one_process_answer_as_in_two(
    opened: Callable[[str], Problem], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = opened(name)
    apart, two = answers(problem)
    assert problem.box is not None
    for one in list(problem.box.workers):
        problem.box.end(one)
    monkeypatch.setattr(box, "SHARED_ON", ("cpu",))
    together, single = answers(problem)
    assert len(two) == 2 and len(single) == 1
    for own, other in zip(apart, together, strict=True):
        assert own.keys() == other.keys()
        for output in own:
            assert own[output].dtype == other[output].dtype and torch.equal(own[output], other[output]), output
    assert together[0][problem.returned[0]].dtype == torch.float64 or name == "chance"


def test_a_model_that_cannot_be_loaded_twice_has_two_processes(
    opened: Callable[[str], Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "SHARED_ON", ("cpu",))
    problem = opened("operator")
    (exact, eager, *again), processes = answers(problem)
    assert problem.box is not None and problem.box.apart and len(processes) == 2
    out = problem.returned[0]
    assert torch.equal(exact[out].float(), eager[out]) and torch.equal(again[0][out], exact[out])


def test_what_fails_in_one_process_is_asked_of_each_by_itself(
    opened: Callable[[str], Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "SHARED_ON", ("cpu",))
    problem = opened("later")
    assert problem.box is not None
    for _ in range(8):  # sixteen calls of each
        found, processes = answers(problem)
        assert len(processes) == 1 + problem.box.apart and len(found) == 4
    assert problem.box.apart
