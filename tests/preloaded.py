"""What tests/forked.py and the emulation of CUDA fork from has imported this."""

import nodes  # noqa: F401  first: sets LANGGRAPH_STRICT_MSGPACK
import tests.graph.doubles
import tests.machine
import tests.nodes.rewrites.emulate.emulation  # noqa: F401
from graph.workflow import build

build()  # compiled once for all of them
