"""What whoever writes a candidate may do before submitting it: compile, check, time, profile, read. The `coder` calls it
through LangGraph's ToolNode (nodes/coding.py), any other coding agent over MCP (graph/serving.py); both see the same.

`arguments.py` says what may be asked, `bench.py` does it in the harness's box, `shown.py` puts it into words: bounded, and
whatever other programs wrote between marks that it cannot close.
"""
