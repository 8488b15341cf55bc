"""The live objects of a run: never checkpointed, made anew by every process that works on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.evaluate import Evaluator
from harness.store import Store
from kernels.catalog import Kernel
from kernels.spec import Spec
from nodes.options import Role
from nodes.roles import Policy, Usage
from nodes.state import State


def _silent(_event: str, _text: str) -> None:
    pass


def _no_file(_candidate: str) -> str:
    return "no file"


@dataclass(frozen=True)
class Context:
    kernel: Kernel
    evaluator: Evaluator
    store: Store
    policies: dict[Role, Policy]
    say: Callable[[str, str], None] = field(default=_silent)
    """say(kind, text): progress inside a node, for the live display. Nothing may depend on it."""
    offer: Callable[[str], str] = field(default=_no_file)
    """offer(candidate): has the best file hold that source, until the run says otherwise; the file's name."""
    usage_before: dict[Role, Usage] = field(default_factory=dict)
    """What answers cost before this process, as the transcript has it: an answer is there before any checkpoint is."""

    def visible_spec(self, state: State) -> Spec:
        """The spec as agents may see it: no held-out workloads, the run's dtypes only, with what the tester added."""
        settings, spec = state["settings"], self.kernel.spec
        suite = [w for w in spec.suite(settings.device) if not settings.dtypes or w.dtype in settings.dtypes]
        if "tests" in state:
            suite.extend(state["tests"].workloads)
        return spec.model_copy(update={"workloads": tuple(suite)})

    def reference(self) -> str:
        """The text of the kernel's reference.py; "" where there is none, or where a module says what is right."""
        if self.kernel.spec.problem or not isinstance(self.kernel, Kernel) or not self.kernel.has_reference:
            return ""
        return (self.kernel.folder / "reference.py").read_text(encoding="utf-8")

    def usage(self) -> dict[Role, Usage]:
        """What the run's policies have spent, by role. One object may answer for several roles."""
        total = dict(self.usage_before)
        for policy in {id(policy): policy for policy in self.policies.values()}.values():
            for role, usage in policy.usage().items():
                total[role] = total.get(role, Usage()).plus(usage)
        return total
