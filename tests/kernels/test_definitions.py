"""Definitions of flashinfer-bench and SOL-ExecBench: what they say becomes a spec, and what is wrong with them one sentence."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels import importers
from kernels.catalog import KernelError
from kernels.importers import _definition, flashinfer_bench, kernelbench, sol_execbench
from tests.kernels.definitions import SIZES, flashinfer, sol


def description(**changes) -> dict:
    given = [
        {"shape": [5, 16], "dtype": "bfloat16", "leading": True, "values": ["ordinary"], "matters": True},
        {"shape": [5], "dtype": "int32", "leading": True, "values": ["given"], "matters": True},
        {"shape": [8, 16], "dtype": "bfloat16", "leading": False, "values": ["given"], "matters": True},
    ]
    outputs = [{"shape": [[0, 5], [0, 16]], "dtype": "bfloat16"}, {"shape": [[0, 5]], "dtype": "float32"}]
    found = {
        "arguments": {"l": [{"t": 0}, {"t": 1}, {"t": 2}, {"v": 1e-6}]}, "inputs": given, "outputs": outputs, "sizes": [],
        "alternatives": ["large"], "fp64": True, "random": False, "weight_bytes": 0,
    }  # fmt: skip
    return found | changes


@pytest.mark.parametrize("made", [flashinfer, sol])
def test_a_definition_becomes_a_spec_of_its_workloads(made: Callable, tmp_path: Path):
    path = made(tmp_path)
    assert importers.for_file(path) is (flashinfer_bench if made is flashinfer else sol_execbench)
    problem = importers.for_file(path).read(path)
    spec = problem.spec(problem.check_answer(description()), "t", most_bytes=1 << 30)
    assert spec.name == "gather_norm_d16" and spec.problem and spec.dtypes == ("bfloat16",)
    assert spec.axes == (("n",) if made is flashinfer else ("n", "twice"))
    inputs = {tensor.name: tensor for tensor in spec.inputs}
    assert inputs["x"].values == ("ordinary", "large") and inputs["ids"].values == ("given:t_1",)
    assert inputs["table"].constant and not inputs["x"].constant and inputs["table"].shape == ("8", "16")
    assert [(tensor.name, tensor.dtype) for tensor in spec.outputs] == [("out", "T"), ("sums", "float32")]
    assert [workload.axes["n"] for workload in spec.suite("cpu")] == [5, 64, 100]
    assert [workload.axes["n"] for workload in spec.suite("cpu", held_out=True)] == [12]
    assert len(problem.files) == 2 and all(file.is_file() for file in problem.files) and not problem.kernelbench


@pytest.mark.parametrize("made", [flashinfer, sol])
def test_its_module_draws_each_workloads_inputs(made: Callable, tmp_path: Path):
    """Our own definition, so it may be executed here; those of others are in the box only."""
    problem = importers.for_file(path := made(tmp_path)).read(path)
    spec = problem.spec(problem.check_answer(description()), "t", most_bytes=1 << 30)
    for workload in spec.workloads:
        module = types.ModuleType("module")
        exec(problem.module_at(workload), module.__dict__)
        x, ids, table, eps = module.get_inputs()
        size = workload.axes["n"]
        assert (x.shape, ids.shape, table.shape, eps) == ((size, 16), (size,), (8, 16), 1e-6)
        assert int(ids.max()) < 8 and str(ids.dtype) == "torch.int32" and str(x.dtype) == "torch.bfloat16"
        if made is flashinfer:
            assert ids.tolist() == [at % 8 for at in reversed(range(size))]
        out, sums = module.Model(*module.get_init_inputs())(x, ids, table, eps)
        assert out.shape == x.shape and sums.shape == (size,)  # in the definition's order, not the dict's
    with pytest.raises(KernelError, match="there are none at bfloat16 n=7"):
        problem.module_at(spec.workloads[0].model_copy(update={"axes": dict.fromkeys(spec.axes, 7)}))


def test_many_workloads_are_thinned_out_and_other_scalars_left_out(tmp_path: Path):
    def other(_definition: dict, workloads: list[dict]) -> None:
        workloads[0]["inputs"]["eps"]["value"] = 0.5
        workloads.append(workloads[1] | {"uuid": "again"})

    path = flashinfer(tmp_path, tuple(range(5, 65)), other)
    problem = flashinfer_bench.read(path)
    changed = description()
    for one, extent in ((changed["inputs"][0], 6), (changed["inputs"][1], 6)):
        one["shape"][0] = extent
    changed["outputs"] = [{"shape": [[0, 6], [0, 16]], "dtype": "bfloat16"}, {"shape": [[0, 6]], "dtype": "float32"}]
    found = problem.check_answer(changed)
    spec = problem.spec(found, "t", most_bytes=1 << 30)
    timed = [w.axes["n"] for w in spec.workloads if w.timed and not w.held_out]
    assert len(timed) == 8 and timed[0] == 6 and timed[-1] >= 62 and len(spec.workloads) == 24
    said = problem.says(spec, found)
    assert "of 60 workloads 8 are timed, 8 checked only, 8 held out" in said[0]
    assert said[1] == "left out: 1 of 61 workloads, whose scalars are not eps 1e-06"


def test_names_that_a_spec_cannot_say_are_told_apart(tmp_path: Path):
    def rename(definition: dict, workloads: list[dict]) -> None:
        definition["axes"]["x"] = definition["axes"].pop("N")
        definition["inputs"]["X"]["shape"][0] = definition["inputs"]["ids"]["shape"][0] = "x"
        definition["outputs"] = {
            "_Y": {"shape": ["x", "D"], "dtype": "bfloat16"},
            "If": {"shape": ["x"], "dtype": "float32"},
        }
        for one in workloads:
            one["axes"] = {"x": one["axes"]["N"]}

    problem = flashinfer_bench.read(flashinfer(tmp_path, change=rename))
    spec = problem.spec(problem.check_answer(description()), "t", most_bytes=1 << 30)
    assert spec.axes == ("x",) and [t.name for t in spec.tensors] == ["x_2", "ids", "table", "t_y", "if_"]


def spoilt(*keys: str, to: object) -> Callable[[dict, list[dict]], None]:
    """Set definition[keys...], or that of the first workload where the first key is `workload`."""

    def change(definition: dict, workloads: list[dict]) -> None:
        place: dict = workloads[0] if keys[0] == "workload" else definition
        for key in keys[1:-1] if keys[0] == "workload" else keys[:-1]:
            place = place[key]
        if to is None:
            del place[keys[-1]]
        else:
            place[keys[-1]] = to

    return change


FAULTS = [
    (spoilt("name", to="../../etc"), "its name '../../etc' must be letters"),
    (spoilt("axes", to=[]), "Definition: field axes: input should be a valid dictionary"),
    (spoilt("axes", "N", "type", to="guess"), "field axes.N.type"),
    (spoilt("axes", "D", "value", to=None), "axis D is const and gives no value"),
    (spoilt("axes", "a b", to={"type": "var"}), "axis 'a b' has no name that Python could use"),
    (spoilt("inputs", "class", to={"shape": ["N"], "dtype": "int32"}), "input 'class' has no name that Python could use"),
    (spoilt("inputs", "X", "shape", to=["N", "E"]), "input X has the axis 'E', which is not among its axes"),
    (spoilt("inputs", "X", "dtype", to="float4_e2m1"), "input X is of dtype 'float4_e2m1', which is not supported"),
    (spoilt("inputs", "X", "shape", to=["N"] * 99), "field inputs.X.shape"),
    (spoilt("outputs", to={}), "field outputs"),
    (spoilt("outputs", "X", to={"shape": ["N"], "dtype": "int32"}), "X is an input and an output"),
    (spoilt("reference", to="def run(:"), "its reference is no Python"),
    (spoilt("reference", to="(" * 5000), "its reference is no Python"),
    (spoilt("reference", to="run = print"), r"its reference defines no function run\(\)"),
    (spoilt("custom_inputs_entrypoint", to="other"), r"its reference defines no function other\(\)"),
    (spoilt("axes", "\x1b[2J", to={"type": "no"}), r"field axes\.\?\[2J"),
    (spoilt("inputs", "X", "values", to="index:N"), "input X cannot be drawn from 'index:N'"),
    (spoilt("inputs", "X", "values", to="magic"), "'magic' is no distribution"),
    (spoilt("workload", "uuid", to="\x1b[2J"), "line 1: WorkloadTrace: field uuid"),
    (spoilt("workload", "axes", "N", to=-1), "line 1: WorkloadTrace: field axes.N"),
    (spoilt("workload", "axes", "N", to=2**70), "line 1: WorkloadTrace: field axes.N"),
    (spoilt("workload", "axes", to={}), "workload n12 gives no size of N"),
    (spoilt("workload", "inputs", "ids", "path", to="/etc/passwd"), "must be a path below the data set's folder"),
    (spoilt("workload", "inputs", "ids", "path", to="blob/../../x"), "must be a path below the data set's folder"),
    (spoilt("workload", "inputs", "ids", "path", to="blob/no"), "is in the file 'blob/no', which is not below"),
    (spoilt("workload", "inputs", "ids", "path", to="blob/out"), "a link that leads out of"),
    (spoilt("workload", "inputs", "ids", "path", to="blob/text"), "is no safetensors file"),
    (spoilt("workload", "inputs", "ids", "tensor_key", to="k"), "holds no tensor 'k'"),
    (spoilt("workload", "inputs", "ids", "path", to="blob/n5.safetensors"), r"ids is int32 \[5\] where input ids is int32 \[12\]"),
    (spoilt("workload", "inputs", "ids", to={"type": "custom"}), "the definition names no custom_inputs_entrypoint"),
    (spoilt("workload", "inputs", "ids", to={"type": "magic"}), "line 1: WorkloadTrace: field inputs.ids.type"),
    (spoilt("workload", "inputs", "X", to={"type": "scalar", "value": 1}), "input X is a tensor, and its value is said to be"),
    (spoilt("workload", "inputs", "eps", to=None), "the scalar eps has no value"),
    (spoilt("workload", "inputs", "other", to={"type": "random"}), "gives 'other', which is no input of"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), FAULTS, ids=[said[:40] for _, said in FAULTS])
def test_each_kind_of_bad_file_is_one_sentence(change: Callable, said: str, tmp_path: Path):
    def only_one(definition: dict, workloads: list[dict]) -> None:
        del workloads[1:]
        change(definition, workloads)

    path = flashinfer(tmp_path / "set", SIZES, only_one)
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "set" / "blob" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "set" / "blob" / "text").write_text("no such thing")
    with pytest.raises(KernelError, match=said) as caught:
        problem = flashinfer_bench.read(path)
        assert problem.module
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 900


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("workloads/norm/gather_norm_d16.jsonl", "", "holds no workload"),
        ("workloads/norm/gather_norm_d16.jsonl", "{\n", "line 1 is no JSON"),
        ("workloads/norm/gather_norm_d16.jsonl", "[" * 100_000, "line 1 is no JSON"),
        (
            "workloads/norm/gather_norm_d16.jsonl",
            '{"definition": "x", "workload": {}}',
            "is of the definition 'x', not",
        ),
        ("definitions/norm/gather_norm_d16.json", '"axes" "inputs" "outputs" "reference"', "is no JSON"),
    ],
)
def test_files_that_are_no_json_are_one_sentence(name: str, text: str, said: str, tmp_path: Path):
    path = flashinfer(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(KernelError, match=said):
        flashinfer_bench.read(path)


def test_workloads_that_are_not_there_are_one_sentence(tmp_path: Path):
    path = flashinfer(tmp_path)
    (tmp_path / "workloads" / "norm" / "gather_norm_d16.jsonl").unlink()
    with pytest.raises(KernelError, match="has no workloads: neither"):
        flashinfer_bench.read(path)
    alone = tmp_path / "alone.json"
    alone.write_text(path.read_text())
    with pytest.raises(KernelError, match=r"put them, one a line, into alone\.jsonl beside it"):
        flashinfer_bench.read(alone)
    (sol_path := sol(tmp_path)).with_name("workload.jsonl").unlink()
    with pytest.raises(KernelError, match=r"workload\.jsonl is not there"):
        sol_execbench.read(sol_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"outputs": description()["outputs"][:1]}, r"run\(\) has 1 output tensors, and the definition 2"),
        (
            {"outputs": description()["outputs"][::-1]},
            r"output out is float32 \[5\] where the definition says bfloat16",
        ),
        ({"inputs": description()["inputs"][:2]}, r"run\(\) has 2 input tensors, and the definition 3"),
        ({"alternatives": ["magic"]}, "makes no sense"),
    ],
)
def test_what_the_box_answers_is_held_against_the_definition(changes: dict, said: str, tmp_path: Path):
    problem = flashinfer_bench.read(flashinfer(tmp_path))
    with pytest.raises(KernelError, match=said):
        problem.check_answer(description(**changes))


@pytest.mark.parametrize(
    "values",
    [["magic"], ["range:2:-2"], ["index:rows"], ["given:mine"], [5], [], ["uniform"] * 99, ["normal:0:nan"], "uniform"],
)
def test_hostile_values_in_a_description_are_one_sentence(values: object, tmp_path: Path):
    path = tmp_path / "p.py"
    path.write_text("class Model:\n    pass\ndef get_inputs(): ...\n")
    given = {"shape": [8, 4], "dtype": "float32", "leading": True, "values": values, "matters": True}
    answer = description(inputs=[given], outputs=[{"shape": [[1, 0], [0, 4]], "dtype": "float32"}], sizes=[1, 3])
    with pytest.raises(KernelError, match="what it says of itself makes no sense") as caught:
        kernelbench.read(path).check_answer(answer)
    assert "\n" not in str(caught.value)


def test_a_shape_that_shrinks_below_nothing_is_one_sentence(tmp_path: Path):
    path = tmp_path / "p.py"
    path.write_text("class Model:\n    pass\ndef get_inputs(): ...\n")
    given = {"shape": [8], "dtype": "float32", "leading": True, "values": ["uniform"], "matters": True}
    problem = kernelbench.read(path)
    found = problem.check_answer(
        description(inputs=[given], outputs=[{"shape": [[1, -8]], "dtype": "float32"}], sizes=[1])
    )
    with pytest.raises(KernelError, match="makes no sense"):
        problem.spec(found, "t", most_bytes=1 << 30)


@pytest.mark.parametrize(
    ("text", "value"),
    [("N * 2", 24), ("(N + 3) % 4", 3), ("N / 4", 3), ("-N + 2 ** 4", 4), ("N // 5 * 2", 4)],
)
def test_an_axis_that_follows_from_others_is_computed(text: str, value: int):
    assert _definition.evaluate_expression(text, {"N": 12}) == value


@pytest.mark.parametrize(
    "text",
    [
        "N / 5",
        "2 ** 99999999",
        "N**8**1**8*N**8",
        "(((N**8)**8)**8)**8",
        "-N",
        "N // 0",
        "__import__('os')",
        "N.real",
        "M",
        "(",
        "1 if N else 2",
    ],
)
def test_an_axis_that_cannot_be_computed_is_refused(text: str):
    with pytest.raises(ValueError, match=r"\S"):
        _definition.evaluate_expression(text, {"N": 12})


def test_what_a_definition_holds_beside_is_ignored(tmp_path: Path):
    path = flashinfer(tmp_path, change=lambda d, _w: d.update(constraints=["N > 0"], more={"x": 1}))
    assert json.loads(path.read_text())["more"] and flashinfer_bench.read(path).definition.name == "gather_norm_d16"
