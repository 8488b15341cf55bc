"""What cannot be drafted is said in one sentence; the package runs alone, away from this project."""

import json
import shutil
from pathlib import Path

import pytest

from compiler import draft
from tests import forked
from tests.nodes.draft.direct import HEADER, problem

PACKAGE = Path(draft.__file__).parent
REFUSED = {
    "a number that is drawn and compared": (
        problem("return x * 2 if torch.rand(1).item() > 0.5 else x", "[torch.randn(3, 4)]"), "torch.export cannot follow the module",
    ),
    "a choice that is drawn": (
        problem("return x * 2 if torch.rand(1) > 0.5 else x", "[torch.randn(3, 4)]"), "torch.export cannot follow the module",
    ),
    "Python's chance": (
        problem("import random\nreturn x * 2 if random.random() > 0.5 else x", "[torch.randn(3, 4)]"), "draws numbers by Python's random",
    ),
    "numpy's chance": (
        problem("import numpy\nreturn x * float(numpy.random.rand())", "[torch.randn(3, 4)]"), "draws numbers by Python's random",
    ),
    "a smear": (problem("y = x * 2\ny[1:] = y[:-1]\nreturn y", "[torch.randn(6, 4)]"), "copies part of a tensor onto itself"),
    "no tensor": (problem("return torch.ones(3) * x", "[3]"), "takes no tensor"),
    "no Model": (f"{HEADER}def get_inputs():\n    return []\n", "defines no Model"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_sentence(name):
    text, words = REFUSED[name]
    with pytest.raises(draft.NoDraft, match=words) as refused:
        draft.draft(text, "cpu")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_a_device_that_is_none_is_refused():
    with pytest.raises(ValueError, match="cuda or cpu"):
        draft.draft(problem("return x", "[torch.randn(3)]"), "tpu")


ALONE = """
import os, runpy, sys
package, folder, ours = sys.argv[1], sys.argv[2], sys.argv[3:]
for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
    del sys.modules[name]
sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
os.chdir(folder)
sys.argv = [package, "problem.py", "cuda", "problem.json"]
runpy.run_path(package, run_name="__main__")
print([name for name in sys.modules if name.partition(".")[0] in ours])
"""


def test_the_package_runs_by_itself(tmp_path):
    """As a worker runs it: a copy of the folder, nothing else of ours, two files."""
    shutil.copytree(PACKAGE, tmp_path / "draft")  # with what Python has compiled
    (tmp_path / "problem.py").write_text(problem("return torch.relu(x)", "[torch.randn(3, 4)]"))
    ours = [folder.name for folder in PACKAGE.parents[1].iterdir() if folder.is_dir()]
    done = forked.run(ALONE, tmp_path / "draft", tmp_path, *ours)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stderr
    drafted = json.loads((tmp_path / "problem.json").read_text())
    lines = drafted["source"].splitlines()
    (kernel,) = drafted["kernels"]
    assert lines[kernel["first_line"] - 1].startswith("// relu") and lines[kernel["last_line"] - 1] == "}"


def test_names_of_the_problem_do_not_come_along():
    """A candidate that binds the problem's sizes again could change them where both are run in one namespace."""
    text = problem("return torch.relu(x)", "[torch.randn(BATCH, 4)]") + "\n\nBATCH = 3\n"
    source = draft.draft(text, "cuda")
    assert "BATCH" not in source and "get_inputs" not in source and "def forward(self, x)" in source


@pytest.mark.parametrize(
    ("arguments", "by"), [("", "3.0f"), ("def get_init_inputs():\n    return {'by': 2.0}\n", "2.0f")]
)
def test_arguments_of_the_constructor_may_be_left_out_or_named(arguments, by):
    """As the harness takes them; it drafts what it can judge."""
    text = f"""{HEADER}
class Model(nn.Module):
    def __init__(self, by=3.0):
        super().__init__()
        self.by = by

    def forward(self, x):
        return torch.relu(x) * self.by


def get_inputs():
    return [torch.randn(4, 8)]


{arguments}"""
    source = draft.draft(text, "cpu")
    assert f"* {by};" in source and "def __init__(self, by=3.0)" in source


LIMITED = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("main", {path!r})
main = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main)
main.LIMIT_S = 0.2
main.main()
"""


def test_a_module_that_takes_too_long_to_follow_stays_with_torch(tmp_path):
    main = Path(draft.__file__).with_name("__main__.py")
    (tmp_path / "problem.py").write_text("while True:\n    pass\n")
    done = forked.run(LIMITED.format(path=str(main)), tmp_path / "problem.py", "cpu", tmp_path / "answer")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "answer").read_text())["none"].startswith("drafting takes more than")
