"""The catalog: folders found by name or path, and every mistake of a user answered by one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernels import catalog
from kernels.catalog import KernelError

SPEC = """
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="scale",
    summary="out = input * factor",
    axes=("count",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="input", role="input", shape=("count",)),
        Tensor(name="out", role="output", shape=("count",)),
        Size(name="count"),
        Scalar(name="factor", value=3.0),
    ),
    workloads=(Workload(axes={"count": 5}, dtype="float32"),),
    flops="count",
)
"""
REFERENCE = "def reference(input, factor):\n    return {'out': input * factor}\n"


def folder(at: Path, spec: str | None = SPEC, reference: str | None = REFERENCE, **files: str) -> Path:
    at.mkdir(exist_ok=True)
    named = {"spec.py": spec, "reference.py": reference} | {
        name.replace("__", "."): text for name, text in files.items()
    }
    for name, text in named.items():
        if text is not None:
            (at / name).write_text(text)
    return at


def refusal(*args: str) -> str:
    with pytest.raises(KernelError) as caught:
        catalog.load(*args)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_a_folder_anywhere_is_loaded_and_its_reference_called(tmp_path):
    torch = pytest.importorskip("torch")
    kernel = catalog.load(str(folder(tmp_path / "my kernel", baseline__cpp="")))
    assert kernel.spec.name == "scale"
    given = torch.tensor([1.0, 2.0], dtype=torch.float64)
    expected = kernel.reference(input=given, **kernel.spec.scalars)
    assert expected["out"].tolist() == [3.0, 6.0]
    assert not list(kernel.folder.glob("__pycache__"))


def test_what_a_reference_makes_lies_beside_its_inputs(tmp_path):
    """moe_align's reference could not be called on a GPU: it makes a range."""
    import torch

    text = "import torch\ndef reference(input, factor):\n    return {'out': input + torch.arange(len(input))}\n"
    kernel = catalog.load(folder(tmp_path / "k", reference=text))
    made = kernel.reference(input=torch.ones(3, device="meta"), factor=2.0)
    assert made["out"].device.type == "meta"
    assert kernel.reference(input=torch.ones(3), factor=2.0)["out"].tolist() == [1, 2, 3]


def test_two_folders_of_one_name_do_not_share_code(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = catalog.load(str(folder(tmp_path / "a" / "scale")))
    second = catalog.load(str(folder(tmp_path / "b" / "scale", SPEC.replace("* factor", "* 2"))))
    assert (first.spec.summary, second.spec.summary) == ("out = input * factor", "out = input * 2")


def test_an_edit_is_seen_by_the_next_load(tmp_path):
    at = folder(tmp_path / "scale")
    catalog.load(str(at))
    folder(at, SPEC.replace("3.0", "4.0"))  # same size, same second
    assert catalog.load(str(at)).spec.scalars == {"factor": 4.0}


def test_listing_and_loading_do_not_import_torch():
    code = (
        "import sys; from kernels import catalog; [catalog.load(name) for name in catalog.names()]; "
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(catalog.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('shape=("count",)),', 'shape=("2*cuont",)),', "arguments: input.shape: '2*cuont' names 'cuont'"),
        ('flops="count"', 'flops="count^2"', "flops: 'count^2' is not an integer expression"),
        ('role="output"', 'role="outptu"', "line 11: Tensor: field role: input should be"),
        ('role="output"', 'rol="output"', "line 11: Tensor: field rol: is no field of Tensor"),
        ('    summary="out = input * factor",\n', "", "Spec: field summary: is required"),
        ('Tensor(name="out", role="output", shape=("count",)),', "", "arguments: no tensor has role 'output'"),
        ('"count": 5', '"count": 0', "Workload: field axes.count: input should be greater than 0, not 0"),
        ('"count": 5', '"size": 5', "workloads: float32 size=5 must give exactly the axes count"),
        ('dtypes=("float32",)', 'dtypes=("float23",)', "Spec: field dtypes[0]: input should be"),
        ('name="factor"', 'name="count"', "arguments: 'count' is named twice"),
        ("SPEC = Spec(", "SPECK = Spec(", "spec.py binds no SPEC"),
        ("SPEC = Spec(", "SPEC = dict(", "spec.py binds SPEC to a dict"),
        ("axes=(", "axes=((", "spec.py, line"),
        ("Size(name=", "Siez(name=", "line 12: NameError: name 'Siez' is not defined"),
        ('"count": 5}', '"count": 5}, timed=False', "workloads: none that is not held out is timed"),
        (
            'role="input",',
            'role="input", values=("range:2:-2",),',
            "'range:2:-2' must be range:LOW:HIGH with two finite numbers",
        ),
        ('role="input",', 'role="input", values=("range:1.2.3:4",),', "'range:1.2.3:4' must be range:LOW:HIGH"),
        (
            'role="input",',
            'role="input", values=("range:-1e400:1",),',
            "must be range:LOW:HIGH with two finite numbers, the lower first",
        ),
        (
            'role="input",',
            'role="input", values=("normal:0:-1",),',
            "must be normal:MEAN:DEVIATION with two finite numbers",
        ),
        (
            'role="input",',
            'role="input", values=("integers:5:5",),',
            "must be integers:LOW:HIGH with two whole numbers",
        ),
        ('role="input",', 'role="input", values=("given:../x",),', "'given:../x' is no distribution"),
        ('role="input",', 'role="input", values=("ordinery",),', "'ordinery' is no distribution: there is ordinary,"),
        ('role="input",', 'role="input", values=("index:count",),', "input draws indices, so it must be of an integer"),
        ('role="input",', 'role="input", ulps=3.0,', "input has ulps, which only an output can have"),
        (
            'role="output",',
            'role="output", ulps=1e9,',
            "out may be off by 1e+09 ulps, and more than 2.09715e+06 in float32",
        ),
        ('role="output",', 'role="output", ulps=float("inf"),', "field ulps: input should be a finite number"),
        ("value=3.0", 'value=float("inf")', "Scalar: field value: input should be a finite number, not inf"),
        ("value=3.0", "value=1e39", "1e+39 is too large for a float"),
        ("value=3.0", 'value=0.5, ctype="int64_t"', "0.5 is no int64_t"),
        ('name="factor"', 'name="lambda"', "'lambda' is a keyword of Python"),
        ('axes=("count",)', 'axes=("in",)', "'in' is a keyword of Python"),
        ('name="factor"', 'name="Factor"', "'Factor' is no name: at most 64 of a-z, 0-9 and _"),
        (
            "workloads=(",
            'workloads=(Workload(axes={"count": 5}, dtype="float32", held_out=True), ',
            "float32 count=5 is listed twice for c",
        ),
        (
            "workloads=(",
            'workloads=(Workload(axes={"count": 6}, dtype="float32", weight=3), ',
            "float32 count=5 has no weight and others have one",
        ),
        (
            'Size(name="count")',
            'Tensor(name="w", role="workspace", shape=("count",), ulps=3), Size(name="count")',
            "w is a workspace, which has no ulps",
        ),
        ('dtypes=("float32",)', 'dtypes=("float32", "float32")', "dtypes: 'float32' is named twice"),
        (
            'dtypes=("float32",)',
            'dtypes=("float32",), requires=("count - 1", "0 - (count & (count - 1))")',
            "float32 count=5 is no call of this kernel, which needs 0 - (count & (count - 1)) to be at least 0",
        ),
        (
            'dtypes=("float32",)',
            'dtypes=("float32",), requires=("count - slots",)',
            "requires: 'count - slots' names 'slots'",
        ),
        ("SPEC = Spec(", "import sys; sys.exit(0)\nSPEC = Spec(", "SystemExit: 0"),
        ("SPEC = Spec(", "raise GeneratorExit\nSPEC = Spec(", "GeneratorExit: no reason given"),
    ],
)
def test_a_wrong_spec_is_refused_with_one_sentence_naming_the_field(tmp_path, old, new, sentence):
    assert old in SPEC
    said = refusal(str(folder(tmp_path / "scale", SPEC.replace(old, new, 1))))
    assert sentence in said
    assert str(tmp_path / "scale" / "spec.py") in said


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        (None, "has no reference.py, which must define reference(...)"),
        ("def reference(:\n", "reference.py, line 1: invalid syntax"),
        ("def expected(input): ...\n", "reference.py defines no function reference(...)"),
        ("print(reference)\n", "reference.py defines no function reference(...)"),
    ],
)
def test_a_missing_or_broken_reference_is_refused_before_anything_runs(tmp_path, reference, sentence):
    assert sentence in refusal(str(folder(tmp_path / "scale", reference=reference)))


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("def reference(x): return {}\n", "does not take the spec's inputs and scalars"),
        ("def reference(input, factor): return input\n", "returned a float, not a dict"),
        ("def reference(input, factor): return {'ouput': input}\n", "returned no 'out'"),
        ("import no_such_package\ndef reference(input, factor): ...\n", "line 1: ModuleNotFoundError"),
        ("reference = 3\n", "defines no function reference(...)"),
        ("def reference(input, factor): ...\nimport sys\nsys.exit(0)\n", "line 3: SystemExit: 0"),
    ],
)
def test_a_reference_that_does_not_fit_its_spec_says_so_when_called(tmp_path, reference, sentence):
    kernel = catalog.load(str(folder(tmp_path / "scale", reference=reference)))
    with pytest.raises(KernelError, match="reference.py") as caught:
        kernel.reference(input=1.0, factor=3.0)
    assert sentence in str(caught.value)


def test_unknown_kernels_are_refused_with_the_nearest_names(tmp_path):
    assert "did you mean silu_and_mul " in refusal("silu_and_mull")
    assert "did you mean fused_add_rmsnorm " in refusal("add_rmsnorm")
    assert "silu_and_mul" in refusal("qqq")
    assert "is not a folder" in refusal(str(tmp_path / "nowhere"))
    assert "has no spec.py" in refusal(str(folder(tmp_path / "empty", None, None)))


def test_baselines_are_named_by_the_middle_of_their_file(tmp_path):
    spec = SPEC.replace('flops="count"', 'flops="count", default_baseline={"cuda": "plain"}')
    files = {"baseline__plain__cu": "", "baseline__fast__cu": "", "baseline__cpp": "", "baseline__txt": ""}
    kernel = catalog.load(str(folder(tmp_path / "scale", spec, **files)))
    assert kernel.baseline("cuda") == ("plain", kernel.folder / "baseline.plain.cu")
    assert kernel.baseline("cuda", "fast")[1].name == "baseline.fast.cu"
    assert kernel.baseline("cpu") == ("baseline", kernel.folder / "baseline.cpp")
    with pytest.raises(KernelError, match="no cuda baseline 'fats'; did you mean fast"):
        kernel.baseline("cuda", "fats")


def test_a_python_baseline_serves_both_devices(tmp_path):
    kernel = catalog.load(str(folder(tmp_path / "scale", baseline__py="")))
    assert kernel.baseline("cuda") == kernel.baseline("cpu") == ("baseline", kernel.folder / "baseline.py")


def test_ambiguous_or_missing_baselines_are_refused(tmp_path):
    several = folder(tmp_path / "several", baseline__a__cpp="", baseline__b__cpp="")
    assert "field default_baseline: must name one for cpu, since there are several: a, b" in refusal(str(several))
    absent = folder(tmp_path / "absent", SPEC.replace("flops=", 'default_baseline={"cuda": "fast"}, flops='))
    assert "field default_baseline: cuda names 'fast', but the folder's cuda baselines are: none" in refusal(
        str(absent)
    )
    twice = folder(tmp_path / "twice", baseline__cpp="", baseline__py="")
    assert "are both the cpu baseline 'baseline'" in refusal(str(twice))
    kernel = catalog.load(str(folder(tmp_path / "none")))
    with pytest.raises(KernelError, match="has no baseline for cpu: put it into baseline.cpp"):
        kernel.baseline("cpu")


@pytest.mark.parametrize("name", catalog.names())
def test_a_spec_can_be_read_from_its_own_json(name):
    spec = catalog.load(name).spec
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
