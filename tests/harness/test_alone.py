"""A candidate taken out of Astrolabe runs by itself, in a process that knows nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.export.one_file import standalone

CANDIDATE = '''"""Twice its input."""
from __future__ import annotations

import torch
from torch import nn

CPP_SOURCE = r"""
#include <cstdint>
extern "C" void twice(const float* x, float* out, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = 2 * x[i]; }
"""
native = load_native(globals())


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        native.twice(x, out, x.numel())
        return out
'''
CHECK = "\nx = torch.rand(5, 7)\nassert torch.equal(ModelNew()(x), 2 * x)\nprint('right')\n"


def test_it_runs_by_itself_and_a_marked_forward_is_one_native_call(tmp_path: Path):
    plain, host = tmp_path / "candidate.py", tmp_path / "marked.py"
    plain.write_text(standalone(CANDIDATE) + CHECK)
    marked = CANDIDATE.replace("    def forward", "    @native.host\n    def forward")
    kept = "\ncells = [cell.cell_contents for cell in ModelNew.forward.__closure__]\nprint([type(one[0]).__name__ for one in cells if type(one) is list])\n"
    host.write_text(standalone(marked) + CHECK + kept)
    code = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path)"
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-I", "-c", code, str(plain), str(plain), str(host)]  # built, then found
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "right\n" * 3 + "['builtin_function_or_method']\n", done.stderr[-2000:]
    assert len(list(tmp_path.glob("astrolabe-native-*/*.so"))) == 2


def test_what_brings_no_native_code_stays_as_it_is():
    assert standalone("import torch\n") == "import torch\n"
