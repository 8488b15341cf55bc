"""How a candidate's entry calls the engine's function, and the files that this needs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from graph.bringing.calls import Calls
from graph.bringing.names import C_NAMES, POINTED_AT, TORCH_NAMES, python_parameters
from harness.backends import form_of
from harness.capture.extents import axis_name
from harness.capture.modules import find_modules
from harness.capture.signature import find_headers
from harness.farside.triton_calls import uses_triton


class Binding(Calls):
    def _build(self, suffix: str) -> dict[str, Any]:
        self.binding: Any = ""
        if self.taken is None:
            return self._python_build()
        build: dict[str, Any] = {"flags": self.flags} if self.flags else {}
        if self.source.suffix == ".c" and suffix == ".cpp":
            build["language"] = "c"
        headers = find_headers(self.source, self.include, self.sources)
        for name, path in headers.files.items():
            place = self.to / "include" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        held = [*headers.folders]
        for name in headers.files:  # reached from another header, by `../name.h`
            if not any(one == "." or Path(name).is_relative_to(one) for one in held):
                held.append(str(Path(name).parent))
        folders = [f"include/{name}" if name != "." else "include" for name in held]
        for folder in folders:
            (self.to / folder).mkdir(parents=True, exist_ok=True)
            if headers.files and not any((self.to / folder).iterdir()):
                (self.to / folder / "here.h").write_text("")  # a folder without files does not travel
        if headers.files:
            build["include"] = tuple(folders)
        if self.taken.guards:
            build["defines"] = dict.fromkeys(self.taken.guards, 1)
            self.doubts.append(
                f"{self.symbol} is compiled where {', '.join(self.taken.guards)} is defined: build.defines does so"
            )
        if self.sources:
            build["sources"] = headers.sources
        form = form_of(self.text)
        dtypes = self.find_dtypes()
        if form == "plain" and self.taken.is_kernel:
            self.doubts.append(
                f"{self.taken.name} is a kernel without a host function: how it is launched stands in build.binding as "
                "<<<1, 256, 0, stream>>>, which is to be replaced by the engine's grid and block"
            )
        launch = "<<<1, 256, 0, stream>>>" if self.taken.is_kernel else ""
        casts = self._casts() if form == "plain" and "language" not in build else {}
        given, is_pointers = dict[str, str](), False
        for seen, parameter in self.order:
            name = self.name_of(seen, parameter)
            if parameter is None and form != "plain":
                continue  # it is returned
            if self.list_of(seen) and parameter is not None:
                name = axis_name(parameter.name)
            given[name] = casts.get(name, "") + self.extent_of.get(name, name)
            if form != "plain" and seen and parameter is not None and (kind := parameter.pointer):
                given[name], is_pointers = f"({kind}){name}.data_ptr()", True
        words = list(given.values())
        at_stream = next((at for at, one in enumerate(self.taken.parameters) if one.is_stream), -1)
        if at_stream >= 0 and suffix == ".cu":
            words.insert(at_stream, "(uintptr_t)stream" if self.taken.parameters[at_stream].is_address else "stream")
        names = ", ".join(words)
        by_dtype = "{T}" in self.symbol or (bool(self.taken.template) and "<" not in self.symbol)
        whole = (
            form == "plain"
            or self.taken.is_overloaded
            or bool(self.extent_of)
            or is_pointers
            or (by_dtype and form in ("torch", "stable"))
        )
        call = f"({names})" if whole else ""
        c_names = C_NAMES | TORCH_NAMES if form in ("torch", "stable") else C_NAMES
        bare = self.symbol.rpartition("::")[2]
        if "{T}" in self.symbol:
            self.binding = {
                dtype: self.symbol.replace("{T}", c_names.get(dtype, dtype)) + launch + call for dtype in dtypes
            }
        elif "<" in self.symbol or not self.taken.template:
            numbers = [] if "<" in self.symbol else self.taken.numbers
            plain = form == "plain" and (self.taken.is_kernel or not self.taken.has_c_linkage)
            if plain or call or "<" in self.symbol or "::" in self.symbol:
                around = f"{self.taken.namespace}::" if self.taken.namespace and "::" not in self.symbol else ""
                self.binding = f"{around if form != 'plain' else ''}{self.symbol}{launch}{call}"
            elif bare != self.taken.name:
                self.binding = self.symbol
            if numbers:
                self.doubts.append(
                    f"{self.symbol} has template parameters ({', '.join(numbers)}): name an instance by --symbol '{self.symbol}<...>'"
                )
        else:
            if self.taken.numbers:
                self.doubts.append(
                    f"{self.symbol} is a template with {', '.join(self.taken.numbers)} beside its types: name an instance by --symbol '{self.symbol}<...>'"
                )
            kinds = len(self.taken.template)
            self.binding = {
                dtype: f"{self.symbol}<{', '.join([c_names.get(dtype, dtype)] * kinds)}>{launch}{call}"
                for dtype in dtypes
            }
        if self.binding:
            build["binding"] = self.binding
        return build

    def _casts(self) -> dict[str, str]:
        """Pointers to structs and types of the engine's own: argument -> the cast that its binding needs."""
        assert self.taken is not None
        found = {}
        for seen, parameter in self.order:
            kind = parameter.pointer if parameter is not None else ""
            to = re.sub(r"\bconst\b|[\s*]|std::", "", kind)
            if kind and to not in POINTED_AT and not any(re.search(rf"\b{one}\b", to) for one in self.taken.template):
                found[self.name_of(seen, parameter)] = f"({kind})"
        return found

    def _python_build(self) -> dict[str, Any]:
        modules = find_modules(self.source)
        if modules.missing:
            self.doubts.append(
                f"{self.source.name} imports {', '.join(modules.missing)}, which its checkout and the box do not have"
            )
        for name, path in modules.files.items():
            place = self.to / "include" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        if self.held:
            self._wrap(modules.name)
            return {"include": ("include",)}
        inner = {"binding": modules.name} if "." in modules.name else {}
        return {"include": ("include",), **inner} if modules.files else {}

    def _wrap(self, module: str) -> None:
        """The file goes below include as it is, and baseline.py calls its function with what no spec holds."""
        place = (self.to / "include").joinpath(*module.split(".")).with_suffix(".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.to / "baseline.py", place)
        taken = python_parameters(self.text, self.symbol)
        names = {seen: self.name_of(seen, parameter) for seen, parameter in self.order if seen in taken}
        given = [one for one in taken if one in names and one not in self.held]
        call = ", ".join(f"{one}={self.held.get(one) or names[one]}" for one in taken if one in names)
        needed = "triton" if uses_triton(self.text) else "torch"
        (self.to / "baseline.py").write_text(
            f"import {needed}\n\nfrom {module} import {self.symbol} as own\n\n\n"
            f"def {self.symbol}({', '.join(names[one] for one in given)}):\n    return own({call})\n"
        )
