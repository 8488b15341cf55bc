"""Engines' kernels as kernel folders, from a checkout that you have: `python -m benchmarks.wild NAME CHECKOUT FOLDER`.

manifest.json says which repository and commit; nothing is fetched, and nothing of the engines' text is kept here. The spec, the reference and the
inputs are ours. Without arguments: what there is.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent


def make(name: str, checkout: Path, to: Path) -> Path:
    """The folder that `run.py check` and `run.py --kernel` take. Raises SystemExit with one sentence."""
    known = json.loads((HERE / "manifest.json").read_text())
    if name not in known:
        raise SystemExit(f"there is no {name!r}; there is {', '.join(known)}")
    wanted = known[name]
    missing = [
        path for path in (*wanted["files"].values(), *wanted["links"].values()) if not (checkout / path).exists()
    ]
    if missing:
        raise SystemExit(
            f"{checkout} has no {missing[0]}: it must be a checkout of {wanted['repository']} at {wanted['commit'][:12]}"
        )
    if to.exists():
        raise SystemExit(f"{to} is there already; name another folder")
    shutil.copytree(HERE / name, to)
    for own, theirs in wanted["files"].items():
        (to / own).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / theirs, to / own)
    for own, theirs in wanted["links"].items():
        (to / own).symlink_to((checkout / theirs).resolve())
    return to


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__)
        for name, one in json.loads((HERE / "manifest.json").read_text()).items():
            print(
                f"{name}: {one['repository']} at {one['commit'][:12]}, {one['form']}{'; needs ' + one['needs'] if 'needs' in one else ''}"
            )
        raise SystemExit(0 if len(sys.argv) == 1 else 2)
    print(make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
