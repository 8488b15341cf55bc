"""Verdicts: what is warm for one kernel on one device, and what it is asked."""
