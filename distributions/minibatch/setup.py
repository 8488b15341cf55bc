"""Builds astrolabe_minibatch: minibatch, and harness and kernels, which it needs, under one name of its own.

A checkout's own names cannot be installed: `kernels` is another package's on PyPI. So their files are copied under
astrolabe_minibatch, and imports of them are written anew.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("minibatch", "harness", "kernels")
NAME = "astrolabe_minibatch"
IMPORTS = re.compile(rf"^(\s*)(from|import) ({'|'.join(PACKAGES)})(?=[.\s])", re.MULTILINE)
FRONT = f'''"""Mini-batches of graph neural networks; docs/minibatch.md of the project says what each name does."""

from {NAME}.minibatch import LIBRARY, __getattr__

__all__ = list(LIBRARY)
'''


class Copied(build_py):
    def run(self) -> None:
        into = Path(self.build_lib) / NAME
        for package in PACKAGES:
            for path in (ROOT / package).rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    copy = into / path.relative_to(ROOT)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    data = path.read_bytes()
                    if path.suffix == ".py":
                        data = IMPORTS.sub(rf"\1\2 {NAME}.\3", data.decode()).encode()
                    copy.write_bytes(data)
        (into / "__init__.py").write_text(FRONT)


# A name is needed for the command to run at all; the package's files are made by it.
setup(py_modules=[], cmdclass={"build_py": Copied}, packages=[NAME], package_dir={NAME: "."}, package_data={NAME: []})
