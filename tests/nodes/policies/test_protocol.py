"""Every policy answers for every role."""

from __future__ import annotations

import pytest

from nodes.options import ROLES
from nodes.policies.chat import ChatPolicy
from nodes.policies.client import ClientPolicy
from nodes.policies.replay import ReplayPolicy
from nodes.policies.rules import RulesPolicy


@pytest.mark.parametrize("policy", [ChatPolicy, ClientPolicy, ReplayPolicy, RulesPolicy])
def test_a_policy_answers_for_every_role(policy):
    assert all(callable(getattr(policy, role, None)) for role in ROLES)
