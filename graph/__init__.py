"""ORDER: the graph, its routes, and the sessions that run it."""

import nodes  # noqa: F401  first of all: it sets LANGGRAPH_STRICT_MSGPACK before langgraph is imported
