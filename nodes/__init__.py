"""WHO ACTS: one node a file, `name(state, runtime) -> update`. Agents ask a policy, gates ask the harness."""

import os

# Read once, when langgraph is first imported: a type that the State does not name is then never rebuilt from a
# checkpoint, so a database that somebody else wrote cannot make this process construct what it likes.
os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"
