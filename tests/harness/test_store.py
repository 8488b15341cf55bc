from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.records import Build
from harness.store import ASKER, DamagedStore, Store, digest, digest_of, write_atomically, write_folder, write_together


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
    assert store.find_record("build", "k", Build) is None
    store.keep("build", "k", build)
    assert store.find_record("build", "k", Build) == build
    assert store.find_record("other", "k", Build) is None


def test_what_is_kept_is_not_made_again(tmp_path):
    store, made = Store(tmp_path), []

    def make():
        made.append(Build(candidate=f"c{len(made)}", backend="cpu", ok=True))
        return made[-1]

    first = store.once("build", "k", Build, make)
    assert store.once("build", "k", Build, make) == first == store.find_record("build", "k", Build) and len(made) == 1
    assert store.once("build", "other", Build, make) == made[1] != first


def test_parts_are_told_apart():
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") == hashlib.sha256(b"ab").hexdigest() == digest(b"ab")
    eight = bytes([2, *[0] * 7]), bytes([1, *[0] * 7])
    assert digest("ab", b"c") == hashlib.sha256(eight[0] + b"ab" + eight[1] + b"c").hexdigest()


def test_sources_are_found_by_how_their_hashes_begin(tmp_path):
    """Six digits at least, and nothing that a file system would take for a pattern."""
    store = Store(tmp_path)
    assert store.find_sources("abcdef") == [], "there is no source yet"
    first, *others = (f"{'abcdef'}{end:058x}" for end in (2, 1, 0))
    for name in (first, *others, "abcde" + "0" * 59):
        write_atomically(tmp_path / "sources" / name, "int x;")
    assert store.find_sources("abcdef") == sorted([first, *others]) and store.find_sources(first) == [first]
    assert store.find_sources("abcde") == [] and store.find_sources("") == []
    assert (
        store.find_sources("abcde*") == [] and store.find_sources("abcde[") == [] and store.find_sources("ABCDEF") == []
    )


def test_a_hash_must_be_one_to_be_looked_up(tmp_path):
    """Of the right length or of the right letters alone it could still name a file that lies there."""
    store = Store(tmp_path)
    store.put("int x;\n")
    for name in ("short", "../" + "x" * 61):
        path = tmp_path / "sources" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("stolen")
        with pytest.raises(KeyError, match="no source"):
            store.get(name)


def test_what_is_written_was_whole_beside_its_place_before(tmp_path, monkeypatch):
    """A rename from another disk would be a copy; and who finds such a file must see whose it is."""
    path, seen = tmp_path / "deep" / "record.json", []
    real = os.replace

    def replaced(source, target):
        seen.append((Path(source), Path(source).read_bytes(), target))
        real(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    write_atomically(path, b"\xff\x00bytes")
    ((source, data, target),) = seen
    assert source.parent == path.parent and source.name.startswith(".record.json.") and data == b"\xff\x00bytes"
    assert target == path and path.read_bytes() == data and path.stat().st_mode & 0o777 == 0o644
    write_atomically(path, "words")
    assert path.read_text() == "words"


def test_a_build_has_a_folder_that_stays(tmp_path):
    store = Store(tmp_path)
    folder = store.build_folder("key")
    (folder / "candidate.so").write_bytes(b"code")
    assert store.build_folder("key") == folder == tmp_path / "builds" / "key"
    assert (folder / "candidate.so").read_bytes() == b"code"


def test_a_linked_store_holds_the_same_and_keeps_what_it_had(tmp_path, monkeypatch):
    store, copy = Store(tmp_path / "one"), Store(tmp_path / "other")
    store.link_to(copy.folder)
    assert not copy.folder.exists(), "there is nothing to link yet"
    name, own = store.put("int x;\n"), copy.put("int own;\n")
    store.link_to(copy.folder)
    store.link_to(copy.folder)  # again: what is there already stays
    assert copy.get(name) == "int x;\n" and copy.get(own) == "int own;\n"
    assert (copy.folder / "sources" / name).stat().st_nlink == 2
    (store.folder / ASKER).write_text("one")
    store.link_to(copy.folder)
    assert not (copy.folder / ASKER).exists(), "what a cluster measured for one is not given to the other"

    def refused(*_):
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refused)
    third = tmp_path / "third"
    store.link_to(third)
    assert Store(third).get(name) == "int x;\n" and (third / "sources" / name).stat().st_nlink == 1


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


@pytest.mark.parametrize(
    "said",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "/elsewhere"),
        OSError("100000 requested and 25584 written"),
        shutil.Error(
            [("/tmp/bigd/f", "/tmp/tm/d/f", "[Errno 28] No space left on device: '/tmp/bigd/f' -> '/tmp/tm/d/f'")]
        ),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_written_whole_or_not_at_all(tmp_path, said: Exception, there: bool):
    folder = tmp_path / "made"
    if there:
        (folder / "inputs").mkdir(parents=True)
        (folder / "inputs" / "old").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=re.escape(str(folder))), write_folder(folder) as made:
        (made / "inputs").mkdir()
        raise said
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(KeyError), write_folder(folder):
        raise KeyError("x")
    assert sorted(tmp_path.rglob("*")) == before
    with write_folder(folder) as made:
        (made / "inputs").mkdir()
        (made / "inputs" / "new").write_text("new")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["made", "inputs", "new"]
    assert folder.stat().st_mode & 0o777 == 0o755 or there


def test_of_files_that_belong_together_none_is_there_where_one_finds_no_room(tmp_path, full_disk):
    (tmp_path / "a").write_text("old")
    full_disk(1)
    with pytest.raises(OSError) as error:
        write_together({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert error.value.filename == str(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_source_that_was_changed_is_named(tmp_path):
    store = Store(tmp_path)
    name = store.put("int x;\n")
    path = tmp_path / "sources" / name
    path.write_text("int x;\n// one line more\n")
    with pytest.raises(DamagedStore, match=name):
        store.get(name)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedStore, match=name):
        store.get(name)


def test_a_record_that_was_changed_is_named(tmp_path):
    store = Store(tmp_path)
    store.keep("build", "k", Build(candidate="c", backend="cpu", ok=True))
    path = tmp_path / "records" / "build" / "k.json"
    written = path.read_text()
    for damaged in (written.replace("true", "false"), written[:20], ""):
        path.write_text(damaged)
        with pytest.raises(DamagedStore, match="k.json"):
            store.find_record("build", "k", Build)


def test_records_of_stores_without_digests_are_read_and_those_of_another_version_are_made_anew(tmp_path):
    store, build = Store(tmp_path), Build(candidate="c", backend="cpu", ok=True)
    path = tmp_path / "records" / "build" / "k.json"
    path.parent.mkdir(parents=True)
    path.write_text(build.model_dump_json())
    assert store.find_record("build", "k", Build) == build
    store.keep_text("build", "k", '{"field of another version": 1}')
    assert store.find_record("build", "k", Build) is None


def test_the_digest_of_a_folder_sees_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    before = digest_of(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = digest_of(tmp_path)
    (tmp_path / "b").write_text("2")
    assert len({before, renamed, digest_of(tmp_path)}) == 3
