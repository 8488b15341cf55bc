"""Source-to-source steps for the rules policy, one a file, a folder a phase (README.md). The file's name is the rewrite's name.

A rewrite is deterministic, works on the syntax tree, refuses to touch what it does not understand, never looks at the
kernel's name, and leaves code that a person would be glad to read. Numbers that a search should pick are left open as
`#define NAME value  // tune: choices` (see harness/judge/tunables.py); where bands of workloads turn out to want different
ones, the tune gate has the host choose (see specialize/dispatch.py).
"""

from nodes.rewrites.registry import Facts, Rewrite, catalog, ordered

__all__ = ["Facts", "Rewrite", "catalog", "ordered"]
