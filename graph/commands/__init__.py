"""The commands of run.py, one file each: `parser()` makes its options and sets `go`, which does it and gives the exit code.

What takes time to import is imported by the function that needs it, so that `--help` is fast.
"""
