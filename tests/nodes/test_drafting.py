"""A draft in a forked process, and what a hostile module comes to."""

import re
import shutil

import pytest

from nodes import drafting

MODULE = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 8)

    def forward(self, x):
        return torch.relu(self.layer(x)) * 3


def get_inputs():
    return [torch.randn(5, 4)]
"""


def test_a_module_is_drafted_there():
    """That the package runs by itself is tested beside it."""
    assert "class ModelNew" in drafting.draft(MODULE, "cuda").source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\nos.abort()\n", "SIGABRT"),
        ("raise SystemExit(3)\n", "the drafter"),
        ("open('/etc/astrolabe', 'w')\n", "Permission|Read-only|denied"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 1))\n", "Permission|denied|permitted"),
    ],
)
def test_what_a_module_does_beside(text, words):
    found = drafting.draft(text, "cpu")
    assert not found.source and re.search(words, found.reason), found


def test_one_that_takes_too_long_says_so(tmp_path, monkeypatch):
    package = shutil.copytree(drafting.PACKAGE, tmp_path / "draft")
    main = package / "__main__.py"
    main.write_text(main.read_text().replace("LIMIT_S = 150.0", "LIMIT_S = 0.3"))
    monkeypatch.setattr(drafting, "PACKAGE", package)
    assert drafting.draft("while True:\n    pass\n", "cpu").reason.startswith("drafting takes more than")
