"""Counters that need a launch or a compiler of their own, one a file: `read(request) -> dict[str, str]`.

A probe that cannot be read answers {"unavailable": why}; it never raises for a missing tool.
"""
