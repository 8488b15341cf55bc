"""Turns around KernelBench's own evaluation, with a stand-in for it: its own needs a GPU."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace

import torch

from benchmarks import kernelbench_draws as draws
from benchmarks import kernelbench_own as own
from tests import forked

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y, times):
        return torch.softmax(x, dim=1) * times + y.sum()

def get_inputs():
    return [torch.randn(7, 50), torch.randint(0, 9, (5,)), 3]

def get_init_inputs():
    return []
"""
EVAL = """
import torch
from types import SimpleNamespace
from . import timing

def load_original_model_and_inputs(source, space):
    exec(source, space)
    return space["Model"], space["get_init_inputs"], space["get_inputs"]

def load_custom_model(source, space, folder):
    exec(source, space)
    return space["ModelNew"]

def eval_kernel_against_ref(original, custom, *, num_correct_trials, num_perf_trials, build_dir, device, **_):
    assert (num_correct_trials, num_perf_trials) == (5, 100)
    space = {}
    model, init, get_inputs = load_original_model_and_inputs(original, space)
    old, new = model(*init()), load_custom_model(custom, space, build_dir)(*init())
    torch.manual_seed(42)
    given = get_inputs()
    assert torch.equal(given[0], torch.randn(7, 50, generator=torch.Generator().manual_seed(42)))
    right = torch.allclose(old(*given), new(*given))
    took = [timing.time_execution_with_cuda_event(one, given) for one in (new, old)]
    return SimpleNamespace(
        compiled=True, correctness=right, metadata={}, runtime=took[0], ref_runtime=took[1], runtime_stats={}, ref_runtime_stats={}
    )
"""
TIMING = """
def time_execution_with_cuda_event(called, given):
    called(*given)
    return 1.0 if type(called).__name__ == "ModelNew" else 3.0

def measure_ref_program_time(name, source, use_torch_compile, **_):
    return {"mean": 4.0 if use_torch_compile else 2.0 if "Model = ModelNew" in source else 3.0}
"""
NEW = "class ModelNew(Model):\n    def forward(self, *given):\n        {}\n        return super().forward(*given)\n"


def test_numbers_drawn_quickly_are_those_of_torch(tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "LEAST", 1)
    rand = draws.build(tmp_path)
    assert rand is not torch.rand
    for count in (1, 2, 623, 624, 625, 1249, 5000):
        torch.manual_seed(2**32 - 1)
        want, after = [torch.rand(count), torch.rand(3, count + 2)], torch.get_rng_state()
        torch.manual_seed(2**32 - 1)
        made = draws.with_rand(rand, lambda count=count: [torch.rand(count), torch.rand((3, count + 2))])()
        assert all(map(torch.equal, made, want)) and torch.equal(torch.get_rng_state(), after), count
    torch.manual_seed(0)
    whole = torch.rand(4, dtype=torch.float64)
    torch.manual_seed(0)
    assert torch.equal(rand(4, dtype=torch.float64), whole)


def test_a_torch_that_draws_others_draws_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(draws, "SOURCE", draws.SOURCE.replace("y >> 18", "y >> 17"))
    assert draws.build(tmp_path) is torch.rand and "draws others" in capsys.readouterr().out


def test_a_judges_memory_is_that_of_inputs_outputs_and_what_lies_between(tmp_path):
    path = tmp_path / "1_Softmax.py"
    path.write_text(PROBLEM.replace("x, dim=1", "x.repeat(100, 1), dim=1)[:7].clone("))
    inputs, outputs, between = 7 * 50 * 4 + 5 * 8, 7 * 50 * 4, 700 * 50 * 4
    assert own.memory(path) == (inputs, 2 * inputs + 4 * outputs + 2 * between + own.CONTEXT_BYTES)
    path.write_text(PROBLEM.replace("y.sum()", "y.sum().item()"))
    assert own.memory(path) == (inputs, own.UNKNOWN_BYTES * inputs + own.CONTEXT_BYTES)


def problems(*counts: int) -> list[own.Problem]:
    names = [(level, number) for level, count in enumerate(counts, 1) for number in range(count)]
    return [own.Problem(Path(f"{number}.py"), level, number) for level, number in names]


def test_a_problem_may_have_dataclasses(tmp_path):
    """Of a module that is none of Python's, as KernelBench executes it."""
    path = tmp_path / "1_Data.py"
    kept = "import dataclasses\n\n@dataclasses.dataclass\nclass Kept:\n    x: torch.Tensor\n    more: int = 2\n\nclass Model("
    path.write_text("from __future__ import annotations\n" + PROBLEM.replace("class Model(", kept))
    assert own.memory(path)[0] > 0


def test_levels_are_mixed_evenly_in_the_seeds_order():
    order = own.mixed(problems(100, 100, 50), 1)
    assert [sum(one.level == level for one in order[:50]) for level in (1, 2, 3)] == [20, 20, 10]
    assert order == own.mixed(problems(100, 100, 50), 1) != own.mixed(problems(100, 100, 50), 2)


def test_nothing_is_judged_far_before_the_first_that_waits(monkeypatch, tmp_path):
    """A large one waits for the host's memory: those behind it begin, but no more than WINDOW of them."""
    monkeypatch.setattr(own, "WINDOW", 3)
    options = SimpleNamespace(out=tmp_path, judges=8, builders=1, mode="default")
    machine = own.Machine(["0"], 100 << 30, (9, 0), "GPU", host_bytes=own.HOST_BYTES << 30, cores=8)
    session = own.Session(options, problems(9), machine, 0.0)
    started = []

    def start(kind: str, problem: own.Problem, gpu: int) -> None:
        started.append(problem.number)
        session.works.append(SimpleNamespace(kind=kind, problem=problem, gpu=gpu))

    monkeypatch.setattr(session, "start", start)
    for problem in session.problems:
        problem.prepared, problem.input_bytes = {"why": ""}, 1 << 30 if problem.number in (1, 2) else 1
    session.fill_gpus()
    session.fill_gpus()
    assert started == [0, 3, 4]  # one of two large ones would be too much beside what others hold


def test_who_times_is_alone(tmp_path):
    def is_free(how: int) -> bool:
        with (tmp_path / "room").open("w") as file:
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    turn = own.Turn(tmp_path)
    turn.enter()
    assert is_free(fcntl.LOCK_SH) and not is_free(fcntl.LOCK_EX)
    assert not turn.alone(lambda: is_free(fcntl.LOCK_SH))()
    assert turn.outside(lambda: is_free(fcntl.LOCK_EX))()
    assert is_free(fcntl.LOCK_SH) and not is_free(fcntl.LOCK_EX)


ONE_GPU = """
import benchmarks.kernelbench_own as own
own.look_around = lambda: own.Machine(["0"], 80 << 30, (9, 0), "none", 1 << 30, cores=2)
own.main()
"""


def test_each_problem_is_judged_in_a_process_of_its_own(tmp_path):
    package, level, drafts = (
        tmp_path / name for name in ("src/kernelbench", "KernelBench/level1", "made/drafts/level1")
    )
    for folder in (package, level, drafts):
        folder.mkdir(parents=True)
    for name, text in (("__init__", ""), ("eval", EVAL), ("timing", TIMING)):
        (package / f"{name}.py").write_text(text)
    bodies = {"1_Right": "", "2_Dies": "import os; os._exit(9)", "3_Full": "raise RuntimeError('CUDA out of memory')"}
    bodies["4_Wrong"] = "return super().forward(*given) + 1"
    for name, body in bodies.items():
        (level / f"{name}.py").write_text(PROBLEM)
        (drafts / f"{name}.py").write_text(PROBLEM + NEW.format(body))
    arguments = ["--kernelbench", tmp_path, "--out", tmp_path / "out", "--drafts", tmp_path / "made"]
    # In a process of its own: judges are forks, and this one may have threads of PyTorch's by now.
    command = [ONE_GPU, *arguments, "--problems", "1"]
    done = forked.run(*command)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    rows = {row["problem"]: row for row in map(json.loads, Path(tmp_path / "out/rows.jsonl").read_text().splitlines())}
    assert {name: row.get("correctness") for name, row in rows.items()} == {
        "level1/1_Right": True,
        "level1/2_Dies": None,
        "level1/3_Full": None,
        "level1/4_Wrong": False,
    }, rows
    assert "process died" in rows["level1/2_Dies"]["why"] and rows["level1/3_Full"]["alone"]
    assert "right 3.00x of eager" in said and "4 of 4 judged" in said and "3.00x │    25%" in said
    assert {name for name, row in rows.items() if row.get("compile_runtime")} == {"level1/1_Right"}, said
    assert "3.00x of eager, 2.00x of torch.compile's default" in said, said + done.stderr
    # Another machine goes on: what torch.compile is timed beside is there again first; all are compiled before the first is timed,
    # and what was tuned only is no row.
    done = forked.run(*command, "--mode", "max-autotune", "--sample", "4")
    assert done.stdout.index("level1/1_Right: compiled") < done.stdout.index("torch.compile's max-autotune"), (
        done.stdout
    )
    assert "2.00x of torch.compile's max-autotune" in done.stdout, done.stdout + done.stderr
