from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.records import Build
from harness.store import Store, digest, write_atomically


def test_a_source_comes_back(tmp_path):
    store = Store(tmp_path)
    name = store.put("int x;\n")
    assert name == digest("int x;\n") and store.get(name) == "int x;\n"
    assert store.put("int x;\n") == name


@pytest.mark.parametrize("name", ["0" * 64, "../secret", "", "a/b"])
def test_an_unknown_hash_is_a_key_error(tmp_path, name):
    with pytest.raises(KeyError, match="no source"):
        Store(tmp_path).get(name)


def test_records_by_kind_and_key(tmp_path):
    store, build = Store(tmp_path), Build(candidate="c", backend="cpu", ok=True)
    assert store.kept("build", "k", Build) is None
    store.keep("build", "k", build)
    assert store.kept("build", "k", Build) == build
    assert store.kept("other", "k", Build) is None


def test_parts_are_told_apart():
    assert digest("ab", "c") != digest("a", "bc")


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    """A file-size limit is how a process can be made to run out of room without filling the machine's disk."""
    path = tmp_path / "record.json"
    write_atomically(path, "old")
    code = f"""
        import resource, signal, sys
        sys.path.insert(0, {str(Path.cwd())!r})
        from pathlib import Path
        from harness.store import write_atomically
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_atomically(Path({str(path)!r}), "x" * 100_000)
        except OSError:
            sys.exit(7)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)])
    assert done.returncode == 7
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["record.json"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
