"""Compiles a CuTe DSL module to one object and one header a dtype: `cute_build.py CANDIDATE.py FOLDER`. Runs in the compiler's box, with no GPU."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import traceback
from pathlib import Path
from typing import Any

NUMERICS = {
    "float64": "Float64", "float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16", "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2", "int64": "Int64", "int32": "Int32", "int16": "Int16", "int8": "Int8", "uint32": "Uint32", "uint16": "Uint16",
    "uint8": "Uint8", "bool": "Uint8", "int64_t": "Int64", "float": "Float32", "double": "Float64",
}  # fmt: skip
"""dtype, or C type of a number -> its name in cutlass."""
ALIGNED = 16
"""Bytes on which every tensor begins."""


def build(candidate: Path, folder: Path) -> str:
    """ "" where all is compiled, else why not."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    asked = json.loads((folder / "asked.json").read_text())
    spec = importlib.util.spec_from_file_location("candidate", candidate)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    function = getattr(module, asked["entry"], None)
    if not callable(function):
        return f"it has no function {asked['entry']}"

    def extents(texts: list[str]) -> tuple[Any, ...]:
        return tuple(int(text) if text.isdigit() else cute.sym_int64() for text in texts)

    def given(one: dict[str, Any], dtype: str) -> Any:
        if one["kind"] != "tensor":
            return getattr(cutlass, NUMERICS[one["ctype"]])(1)
        numeric = getattr(cutlass, NUMERICS[dtype if one["dtype"] == "T" else one["dtype"]])
        return make_fake_tensor(numeric, extents(one["shape"]), stride=extents(one["strides"]), assumed_align=ALIGNED)

    for name, dtype in asked["entries"].items():
        arguments = [given(one, dtype) for one in asked["arguments"]]
        compiled = cute.compile(function, *arguments, make_fake_stream())
        compiled.export_to_c(file_path=str(folder), file_name=name, function_prefix=name)
    return ""


if __name__ == "__main__":
    try:
        why = build(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # noqa: BLE001, a candidate may fail in any way
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
        if place := re.search(r"--> *(?:\S*/)?candidate\.py:(\d+)", said):
            line = place[1]
        else:
            places = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.endswith("candidate.py")]
            line = str(places[-1].lineno) if places else "1"
        print(f"candidate.py:{line}: error: {type(error).__name__}: {said.removeprefix('error: ')}")
        sys.exit(1)
    if why:
        print(f"candidate.py: error: {why}")
        sys.exit(1)
