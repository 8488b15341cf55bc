"""`python -I compiler/draft PROBLEM DEVICE ANSWER [DTYPE] [NUMERICS]` writes JSON to ANSWER: source, notes and kernels, or `{"none": sentence}`."""

import importlib.util
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _package():
    """This folder as a package of its own name, without its neighbours on the path: some are called as the library's modules."""
    spec = importlib.util.spec_from_file_location("draft", HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    package = importlib.util.module_from_spec(spec)
    sys.modules["draft"] = package
    spec.loader.exec_module(package)
    return package


def main() -> None:
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]
    package = _package()
    problem, device, answer, *more = sys.argv[1:]
    named = {"numerics" if word in ("eager", "fp32") else "dtype": word for word in more}
    try:
        found = package.answer(Path(problem).read_text(encoding="utf-8"), device, **named)
    except package.NoDraft as none:
        found = {"none": str(none)}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
