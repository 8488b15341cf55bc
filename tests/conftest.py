"""Skips what this machine cannot run, with the reason."""

from __future__ import annotations

import os

import pytest

# Eight test processes with two OpenMP threads each would wait for one another more than they compute.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    from harness.device import why_no_cuda

    if reason := why_no_cuda():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
