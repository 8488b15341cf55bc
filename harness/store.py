"""Sources, artefacts and verdicts by the hash of their content. Writing twice is harmless; half a file is never seen."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

Record = TypeVar("Record", bound=BaseModel)


def digest(*parts: str | bytes) -> str:
    """sha256 of the parts, hex; the lengths are hashed too, so ("ab", "c") is not ("a", "bc")."""
    whole = hashlib.sha256()
    if len(parts) == 1:
        whole.update(parts[0].encode() if isinstance(parts[0], str) else parts[0])
        return whole.hexdigest()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write to a sibling, then rename: a reader, or a resume after a kill, sees all of it or nothing.

    Raises OSError where the disk is full, with the path; the sibling is removed.
    """
    write_together({path: data})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """Several files, each as `write_atomically` does; none of them is there before all are written."""
    written: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            with name_full_disk(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                written[path] = Path(name)
                with os.fdopen(handle, "wb") as file:
                    file.write(data.encode() if isinstance(data, str) else data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).chmod(0o644)
        for path, sibling in written.items():
            os.replace(sibling, path)
    except BaseException:
        for sibling in written.values():
            sibling.unlink(missing_ok=True)
        raise


@contextmanager
def write_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, whose content takes its place in `folder` where the block ends without an exception, in place of entries of the
    same names; else nothing of it stays. Raises OSError where the disk is full, with the path."""
    there = folder.is_dir()
    with name_full_disk(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder if there else folder.parent, prefix=f".{folder.name}."))
        try:
            yield made
            made.chmod(0o755)
            if not there:
                os.replace(made, folder)
                return
            for entry in made.iterdir():
                if (old := folder / entry.name).is_dir() and not old.is_symlink():
                    shutil.rmtree(old)
                os.replace(entry, old)
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Errors of a full disk name what was to be written."""
    try:
        yield
    except Exception as error:
        if not says_disk_is_full(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None


def says_disk_is_full(error: BaseException) -> bool:
    """By the text, too: errors of safetensors, shutil.copytree, SQLite and numpy (the last words) have no number."""
    said = r"No space left on device|Disk quota exceeded|database or disk is full|\d requested and \d+ written"
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or bool(re.search(said, str(error)))


class DamagedStore(Exception):
    """A file of a store is not what was written. One sentence, with the file's name."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was changed or damaged after it was written; restore it, or start a new run")


ASKER = "asker"
"""File of the name by which a cluster knows stores apart."""


class Store:
    """A folder of content-addressed files: `sources/<hash>`, `records/<kind>/<key>.json`, `builds/<key>/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, source: str) -> str:
        """Keep a source; returns its sha256."""
        name = digest(source)
        path = self.folder / "sources" / name
        if not path.exists():
            write_atomically(path, source)
        return name

    def get(self, name: str) -> str:
        """The source of that hash. Raises KeyError where there is none, DamagedStore where it has another hash now."""
        path = self.folder / "sources" / name
        if len(name) != 64 or not name.isalnum() or not path.is_file():
            raise KeyError(f"no source {name!r} in {self.folder}")
        data = path.read_bytes()
        if digest(data) != name:
            raise DamagedStore(path)
        return data.decode()

    def find_sources(self, prefix: str) -> list[str]:
        """The hashes of the sources here that begin so; `prefix` is the first digits of one, at least six."""
        if len(prefix) < 6 or not set(prefix) <= set("0123456789abcdef"):
            return []
        folder = self.folder / "sources"
        return sorted(path.name for path in folder.glob(f"{prefix}*")) if folder.is_dir() else []

    def link_to(self, copy: Path) -> None:
        """The same store in another folder, but for its name as an asker. Nothing in a store is changed in place, so hard
        links are as good as copies."""
        if self.folder.is_dir():
            shutil.copytree(
                self.folder, copy, copy_function=_link, dirs_exist_ok=True, ignore=shutil.ignore_patterns(ASKER)
            )

    def build_folder(self, key: str) -> Path:
        folder = self.folder / "builds" / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def keep(self, kind: str, key: str, record: BaseModel) -> None:
        self.keep_text(kind, key, record.model_dump_json())

    def keep_text(self, kind: str, key: str, text: str) -> None:
        """A record as another process wrote it, one line of JSON."""
        write_atomically(self.folder / "records" / kind / f"{key}.json", f"{text}\n{digest(text)}\n")

    def find_record(self, kind: str, key: str, model: type[Record]) -> Record | None:
        """The record of that key, or None where there is none yet. Raises DamagedStore where it is not as it was written."""
        path = self.folder / "records" / kind / f"{key}.json"
        if not path.is_file():
            return None
        text, _, written = path.read_bytes().partition(b"\n")
        if written and digest(text) != written.decode("ascii", "replace").strip():
            raise DamagedStore(path)
        try:
            return model.model_validate_json(text)
        except ValueError:
            if written:  # as it was written, by a version whose records had other fields
                return None
            raise DamagedStore(path) from None  # stores of before 2026-11-25 hold no digests

    def once(self, kind: str, key: str, model: type[Record], make: Callable[[], Record]) -> Record:
        """The record of that key; made, and kept, where there is none yet."""
        if (found := self.find_record(kind, key, model)) is None:
            found = make()
            self.keep(kind, key, found)
        return found


def digest_of(path: Path, leave_out: tuple[str, ...] = ("__pycache__",)) -> str:
    """sha256 of a file, or of a folder's files with their names, hex; `leave_out`: names of folders in it that do not count."""
    if path.is_file():
        return digest(path.read_bytes())
    files = sorted(
        file for file in path.rglob("*") if file.is_file() and not set(leave_out) & set(file.relative_to(path).parts)
    )
    return digest(*(part for file in files for part in (str(file.relative_to(path)), file.read_bytes())))


def _link(source: str, target: str) -> None:
    if Path(target).exists():
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
