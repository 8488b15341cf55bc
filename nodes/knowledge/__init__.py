"""What is known of a family of kernels on a kind of device: pages for models to read, each with a worked snippet.

`<device>_<family>.md`, and what only Hopper has in `hopper_<what>.md`. Tests compile every snippet and call it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from harness.once import Once
from harness.records import DeviceFacts
from harness.store import digest
from kernels.family import Family, family
from kernels.spec import Spec

FOLDER = Path(__file__).parent
HOPPER: dict[Family, tuple[str, ...]] = {
    "elementwise": ("pdl",),
    "row reduction": ("clusters", "pdl"),
    "column reduction": ("clusters", "pdl"),
    "matrix product": ("tma", "mbarrier", "wgmma"),
    "quantised product": ("mbarrier", "pdl"),
    "attention": ("tma", "mbarrier", "wgmma"),
    "decode attention": ("mbarrier", "clusters", "pdl"),
    "gather": ("mbarrier", "pdl"),
    "scatter": ("pdl",),
    "histogram": ("clusters", "pdl"),
    "scan": ("clusters", "pdl"),
    "sort": ("clusters", "pdl"),
    "select": ("pdl",),
    "state update": ("pdl",),
    "convolution": ("tma", "mbarrier", "wgmma"),
}
"""The pages that have served such kernels, the most telling first."""
HOPPERS = ("sm_90", "sm_90a")
_families: Once[tuple[Family, ...]] = Once()


def families_of(spec: Spec, reference: str) -> tuple[Family, ...]:
    """What a kernel is by what its reference (the file's text) does, first of all and then besides; by its spec's words where there is
    none, as of a PyTorch module, or it cannot be run."""

    def find() -> tuple[Family, ...]:
        from compiler.families import families  # imports torch

        return families(spec, reference)

    known = _families.get(digest(spec.model_dump_json(), reference), find) if reference else ()
    return known or (family(spec),)


def names(families: Sequence[Family], device: DeviceFacts) -> tuple[str, ...]:
    """The pages for a kernel of these families on this device: each family's, then what its chip has for the first."""
    more = HOPPER[families[0]] if device.architecture in HOPPERS else ()
    return (*(f"{device.device}_{one.replace(' ', '_')}" for one in families), *(f"hopper_{what}" for what in more))


def every() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.md")))


@functools.cache
def page(name: str) -> str:
    """Raises KeyError where there is no such page."""
    if name not in every():
        raise KeyError(f"there is no page {name[:60]!r}; there is {', '.join(every())}")
    return (FOLDER / f"{name}.md").read_text().strip()


def render_pages(families: Sequence[Family], device: DeviceFacts) -> str:
    """All that is shown of them in a prompt."""
    return "\n\n".join(page(name) for name in names(families, device))
