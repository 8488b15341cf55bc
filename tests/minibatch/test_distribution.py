"""The library in a program that has no checkout, and the lines of the documentation that make a graph of one's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def example() -> str:
    """The lines of docs/minibatch.md that make a graph."""
    (found,) = re.findall(r"```python\n(import torch\n.*?)```", (ROOT / "docs" / "minibatch.md").read_text(), re.DOTALL)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What installing the distribution puts into site-packages."""
    made = tmp_path_factory.mktemp("site")
    words = [sys.executable, "setup.py", "-q", "build", "--build-base", made / "build", "--build-lib", made / "lib"]
    done = subprocess.run(words, cwd=ROOT / "distributions" / "minibatch", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return made / "lib"


PROGRAM = """
import sys
import torch
from torch_geometric.data import Data
from astrolabe_minibatch import BatchLoader, NeighborLoader, from_pyg, load
data = Data(x=torch.randn(30, 3), edge_index=torch.randint(30, (2, 90)), y=torch.arange(30) % 2)
assert next(iter(NeighborLoader(data, [2, 2], batch_size=4))).batch_size == 4
with BatchLoader(from_pyg(data), [2, 2], 8) as loader:
    assert len(list(loader.epoch(torch.arange(30)))) == 4
from astrolabe_minibatch.minibatch.ops import Kernels
Kernels("cpu")
assert load("my-graph").nodes == 1000
print([name for name in sys.modules if name.split(".")[0] in ("minibatch", "harness", "kernels")])
"""


def test_another_program_imports_it_under_one_name(site, tmp_path):
    assert [path.name for path in site.iterdir()] == ["astrolabe_minibatch"]
    text = example().replace("from minibatch import", "from astrolabe_minibatch import") + PROGRAM
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr[-2000:]


def test_a_graph_of_ones_own_takes_ten_lines_and_trains(tmp_path, monkeypatch, capsys):
    from run import main

    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    exec("\n".join(lines), {})
    words = ["--graph", "my-graph", "--fanout", "3", "3", "--epochs", "1", "--json", "--runs-dir", str(tmp_path)]
    assert main(["epoch", *words]) == 0
    assert '"valid_accuracy"' in capsys.readouterr().out
