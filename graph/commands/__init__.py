"""The commands of run.py, one file each: a record whose fields are its options, and what it does (`options.Command`).

What takes time to import is imported by the function that needs it, so that `--help` is fast.
"""
