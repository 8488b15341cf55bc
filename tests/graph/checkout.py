"""What stands for an engine's checkout."""

from __future__ import annotations

from pathlib import Path


def write_texts(folder: Path, texts: dict[str, str]) -> None:
    """Files by their paths in the folder."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
