"""What tests/forked.py and the emulation of CUDA fork from has imported this."""

# ruff: noqa: E402

import gc

gc.disable()  # imports leave next to no garbage, and to look for it takes a fifth of their time

import nodes  # noqa: F401  first: sets LANGGRAPH_STRICT_MSGPACK
import tests.graph.doubles
import tests.machine
import tests.nodes.rewrites.emulate.emulation  # noqa: F401
from graph.workflow import build

build()  # compiled once for all of them
gc.collect()
gc.freeze()  # nor does any of them look through it for garbage
gc.enable()
