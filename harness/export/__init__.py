"""The way out of a run: a package, or one file, that works without Astrolabe."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def load_templates() -> Environment:
    """The templates of what is exported: sources and TOML, no HTML; all that goes in is from the typed spec and the folder's own files.
    Kept: compiling them takes longer than a package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("harness.export")
    return Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
