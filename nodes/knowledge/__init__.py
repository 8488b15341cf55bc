"""What is known of a family of kernels on a kind of device: pages for models to read, each with a worked snippet.

`<device>_<family>.md`, and what only Hopper has in `hopper_<what>.md`. Tests compile every snippet and call it.
"""

from __future__ import annotations

import functools
from pathlib import Path

from harness.records import DeviceFacts
from kernels.family import Family, family
from kernels.spec import Spec

FOLDER = Path(__file__).parent
HOPPER: dict[Family, tuple[str, ...]] = {
    "elementwise": ("pdl",),
    "row reduction": ("clusters", "pdl"),
    "matrix product": ("tma", "mbarrier", "wgmma"),
    "attention": ("tma", "mbarrier", "wgmma"),
    "gather and scatter": ("mbarrier", "pdl"),
    "scan": ("clusters", "pdl"),
    "sort and select": ("clusters", "pdl"),
    "convolution": ("tma", "mbarrier", "wgmma"),
}
"""The pages that have served such kernels, the most telling first."""
HOPPERS = ("sm_90", "sm_90a")


def names(spec: Spec, device: DeviceFacts) -> tuple[str, ...]:
    """The pages for this kernel on this device: its family's, then what its chip has for it."""
    kind = family(spec)
    more = HOPPER[kind] if device.architecture in HOPPERS else ()
    return (f"{device.device}_{kind.replace(' ', '_')}", *(f"hopper_{what}" for what in more))


def every() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.md")))


@functools.cache
def page(name: str) -> str:
    """Raises KeyError where there is no such page."""
    if name not in every():
        raise KeyError(f"there is no page {name[:60]!r}; there is {', '.join(every())}")
    return (FOLDER / f"{name}.md").read_text().strip()


def render_pages(spec: Spec, device: DeviceFacts) -> str:
    """All that is shown of them in a prompt."""
    return "\n\n".join(page(name) for name in names(spec, device))
