"""Before any test module imports langgraph itself."""

import nodes  # noqa: F401  sets LANGGRAPH_STRICT_MSGPACK
