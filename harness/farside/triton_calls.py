"""Triton on the far side. Its kernels are compiled at their first call: by ptxas and a C compiler, which are programs, and
the process that is judged may start none. So a candidate's calls are made once before, in a process that may
(harness/judge/triton_kernels.py), and what was compiled there is found by the judged one in a folder of the candidate's own.

On a CPU, for which Triton has no compiler, its interpreter serves.

`@triton.autotune`: how many configurations are measured is bounded, and what was chosen stays chosen. The process that fills a candidate's folder
measures, up to MOST_FIRST configurations of a kernel the first time, at its later keys the fastest MOST_LATER of these; every other process takes what
CHOSEN says, and measures nothing, so that what is timed is one configuration a key. The interpreter, whose times say nothing, takes the first. A user's
process measures anew and may take another of those that were measured: `take_turn` has each of them called once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHE = "triton"
"""Name of the cache in the candidate's folder."""
SAID = "programs_said.json"
"""File in CACHE with what programs printed while it was filled. Triton asks ptxas for its version, and the linker for
libcuda, to name what it looks for, and these may not be started any more."""
CHOSEN = "autotuned.json"
"""Kernel -> key -> texts of the configurations that ran there, the chosen one first. In the folder of what was compiled."""
MOST_FIRST, MOST_LATER = 16, 4
LATE = (
    "Triton wants to compile a kernel that no call with the suite's sizes compiled before: here no compiler may be started. "
    "A kernel's compile-time arguments may depend on shapes and dtypes only"
)
_IMPORTS = re.compile(r"^\s*(import|from)\s+triton\b", re.MULTILINE)


def uses_triton(source: str) -> bool:
    """Whether a Python module imports Triton; decides on what is done beforehand, not on a verdict."""
    return _IMPORTS.search(source) is not None


def settle(folder: str, *, gpu: bool, compilers: bool) -> None:
    """Before a candidate of `folder` is executed. `compilers`: programs may be started here, and the folder is filled."""
    cache = Path(folder) / CACHE
    tunes = _tunes(Path(folder))
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"
        if tunes:
            limit_tuning(None, measures=False)
        if _names(Path(folder), "triton"):
            read_single_numbers(importlib.import_module("triton.runtime.interpreter"))
        return
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    for group in cache.glob("*/__grp__*"):
        rewrite_paths(group)
    if compilers:
        cache.mkdir(exist_ok=True)
        subprocess.check_output = recording(cache / SAID, subprocess.check_output)
    elif cache.is_dir():
        subprocess.check_output = replaying(cache / SAID)
        subprocess.Popen = TooLate  # type: ignore[misc]
    if tunes:
        limit_tuning(cache, measures=compilers)


def _tunes(folder: Path) -> bool:
    """Whether a candidate, or a module that its kernel brings, names Triton's tuner, and Triton is here."""
    return _names(folder, "autotune")


def _names(folder: Path, word: str) -> bool:
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in folder.rglob("*.py"))
    return importlib.util.find_spec("triton") is not None and any(word in text for text in texts)


def read_single_numbers(interpreter: Any) -> None:
    """Let a number of a kernel be an index, as in `range(0, width)`, whatever NumPy is here.

    The interpreter holds it in an array of one element and takes int() of that (Triton 3.6), which
    NumPy refuses from 2.5 on: a right candidate ended with a TypeError of the environment's.
    """
    patch = getattr(interpreter, "_patch_lang_tensor", None)
    if patch is None:
        return

    def patched(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)  # at each launch; with a scope, what was there before comes back behind it
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def rewrite_paths(group: Path) -> None:
    """Triton writes down whole paths of what belongs together; it lies elsewhere now."""
    found = json.loads(group.read_text())
    found["child_paths"] = {name: str(group.with_name(Path(path).name)) for name, path in found["child_paths"].items()}
    group.write_text(json.dumps(found))


def recording(path: Path, call: Callable[..., Any]) -> Callable[..., Any]:
    said: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    @functools.wraps(call)
    def check_output(command: Any, *arguments: Any, **options: Any) -> Any:
        answer = call(command, *arguments, **options)
        said[json.dumps(command, default=str)] = (
            answer if isinstance(answer, str) else answer.decode(errors="surrogateescape")
        )
        path.write_text(json.dumps(said))
        return answer

    return check_output


def replaying(path: Path) -> Callable[..., Any]:
    said: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def check_output(command: Any, *_arguments: Any, **options: Any) -> Any:
        answer = said.get(json.dumps(command, default=str))
        if answer is None:  # a program that was not there then either, or failed
            raise FileNotFoundError(f"{command} may not be started here")
        text = any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
        return answer if text else answer.encode(errors="surrogateescape")

    return check_output


class TooLate(subprocess.Popen):
    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        raise RuntimeError(LATE)


turn = 0
"""Which of the configurations that may be chosen calls take; 0 is the one that is."""
tuned: list[Choices] = []
"""Of the tuners of this process."""


def take_turn(number: int) -> int:
    """Have calls take that configuration of each tuner, counted around; of how many the largest one has a choice."""
    global turn
    turn = number
    return max((len(options) for one in tuned for options in one.options.values()), default=1)


class Choices(dict[Any, Any]):
    """A tuner's key -> configuration, in place of its own."""

    def __init__(self, tuner: Any, path: Path | None, measures: bool) -> None:
        super().__init__()
        self.tuner, self.path, self.measures = tuner, path, measures
        function = tuner.base_fn
        self.kernel = f"{function.__module__}.{function.__qualname__}"
        self.fastest: list[str] = []
        """Configurations by their texts, in the order of the times of the first key that was measured."""
        self.ran: list[str] = []
        """Those that ran since the last key was measured."""
        self.options: dict[Any, list[Any]] = {}
        """Key -> the configurations that may be chosen there, the one that is first."""
        tuned.append(self)

    def known(self) -> dict[str, list[str]]:
        if self.path is None or not self.path.is_file():
            return {}
        found = json.loads(self.path.read_text()).get(self.kernel, {})
        return {key: [texts] if isinstance(texts, str) else texts for key, texts in found.items()}  # a build of before

    def __contains__(self, key: object) -> bool:
        if key not in self.options and not self._find(key):
            return False
        options = self.options[key]
        super().__setitem__(key, options[turn % len(options)])
        return True

    def _find(self, key: object) -> bool:
        """Take the options of a key from what was measured elsewhere; False where it is to be measured here."""
        known = self.known()
        texts = known.get(str(key))
        if texts is None and self.measures:
            return False
        if texts is None and known:  # a key that no call had before: what most others have
            first = [one[0] for one in known.values()]
            texts = [max(first, key=first.count)]
        by_text = {str(one): one for one in reversed(self.tuner.configs)}
        found = [by_text[text] for text in texts or () if text in by_text]
        self.options[key] = found or (
            _spread(self.tuner.configs, MOST_FIRST) if self.path is None else self.tuner.configs[:1]
        )
        return True

    def note(self, config: Any, took: Any) -> Any:
        """What measuring it said: one that has no room on this device took for ever."""
        if min(took if isinstance(took, (list, tuple)) else [took]) < float("inf"):
            self.ran.append(str(config))
        return took

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        texts = list(dict.fromkeys([str(config), *self.ran]))
        by_text = {str(one): one for one in self.tuner.configs}
        self.ran, self.options[key] = [], [config, *(by_text[text] for text in texts[1:] if text in by_text)]
        if self.path is None or not self.measures:
            return
        held = json.loads(self.path.read_text()) if self.path.is_file() else {}
        held.setdefault(self.kernel, {})[str(key)] = texts
        self.path.write_text(json.dumps(held))

    def bound(self, configs: list[Any]) -> list[Any]:
        """Those of the configurations that are measured now."""
        times: dict[Any, Any] = getattr(self.tuner, "configs_timings", None) or {}  # of an earlier key
        if not self.fastest and times:
            self.fastest = [str(one) for one in sorted(times, key=lambda one: times[one])]
        if self.fastest:
            again = [one for one in configs if str(one) in self.fastest[:MOST_LATER]]
            if again:
                return again
        most = MOST_LATER if self.fastest else MOST_FIRST
        return _spread(configs, most)


def _spread(configs: list[Any], most: int) -> list[Any]:
    return configs if len(configs) <= most else [configs[at * len(configs) // most] for at in range(most)]


def limit_tuning(cache: Path | None, *, measures: bool) -> None:
    """From here on, of tuners that are made. `cache`: the folder that holds CHOSEN, None in the interpreter. Needs Triton."""
    tuners = importlib.import_module("triton.runtime.autotuner").Autotuner
    own = tuners.__init__

    def make(self: Any, *given: Any, **named: Any) -> None:
        own(self, *given, **named)
        if len(self.configs) < 2:
            return
        choices = Choices(self, cache / CHOSEN if cache is not None else None, measures)
        prune, bench = self.prune_configs, self._bench
        self.cache, self.cache_results = choices, False
        self.prune_configs = lambda *more, **others: choices.bound(prune(*more, **others))
        self._bench = lambda *more, config, **others: choices.note(config, bench(*more, config=config, **others))

    tuners.__init__ = make
