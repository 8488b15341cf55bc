"""`run.py bring`: a kernel's folder from an engine's own test, or from a function and example arguments.

calls.py      calls that were watched -> which argument is which parameter, sizes
arguments.py  the spec's arguments
binding.py    build.binding, headers, sources
reference.py  reference.py
folder.py     the folder; what was not found out
"""

from graph.bringing.folder import bring

__all__ = ["bring"]
