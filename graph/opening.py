"""Opens what a run works with: its kernel, the evaluator that is warm for it, and who answers for each role."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph import outputs
from graph.runs import RunError, RunFolder, RunRecord
from graph.session import kernel_digest
from harness import engines
from harness.engines import Engine, EngineChoice
from harness.evaluate import begin_building
from harness.problems import pytorch
from harness.store import Store
from harness.timing import load
from kernels.catalog import KernelError
from nodes.context import Context
from nodes.options import ROLES, Role
from nodes.roles import Policy, Usage
from nodes.state import Settings, Spent, State
from nodes.subjects import subject_of

if TYPE_CHECKING:
    pass

Say = Callable[[str, str], None]


@contextmanager
def open_context(
    run: RunFolder, record: RunRecord, state: State, say: Say, engine: Engine | None = None
) -> Iterator[Context]:
    """Raises RunError where the kernel is another one now, and whatever its parts raise where they cannot be had.

    `engine`: one that is open already and stays so; else the run's own is opened.
    """
    settings = record.settings
    folder = pytorch.find_definition(settings.kernel)
    if kernel_digest(folder) != record.kernel_digest:
        raise RunError(
            f"the spec or the reference of {folder} has changed since run {run.id} began, so its verdicts do "
            "not hold any more; start a new run"
        )
    with (
        _engine(settings, say, engine) as at_work,
        make_context(settings, run.store, run.folder / "transcript.jsonl", state, say, at_work) as context,
    ):
        how: dict[str, Any] = {"device": settings.device, "problem": subject_of(settings).drafted}
        yield replace(context, offer=lambda candidate: outputs.write_best(run, candidate, **how).name)


@contextmanager
def _engine(settings: Settings, say: Say, engine: Engine | None) -> Iterator[Engine]:
    if engine is not None:
        yield engine
        return
    with closing(engines.open_engine(settings.engine, settings.device, lambda text: say("cluster", text))) as made:
        yield made


@contextmanager
def make_context(
    settings: Settings, store: Store, transcript: Path, state: State, say: Say, engine: Engine | None = None
) -> Iterator[Context]:
    """The live objects that these settings and that state call for; `transcript` keeps what models answer.

    `engine`: where candidates are judged, or this machine.
    """
    engine = engine or engines.open_engine(EngineChoice(), settings.device)
    policies, usage_before = answering(settings, transcript, state, say)
    with (
        load.announce() if engine.here else nullcontext(()) as others,
        closing(pytorch.load(settings.kernel, settings.device, memory_bytes=engine.memory_bytes)) as kernel,
        engine.evaluator(
            kernel,
            store,
            dtypes=settings.dtypes,
            sandbox_mode=settings.sandbox,
            own_kernels=settings.own_kernels,
            exact_to=settings.source if settings.exact else "",
            say=lambda text: say("harness", text),
        ) as evaluator,
    ):
        evaluator.notices = (*evaluator.notices, *others)
        if "tests" in state:
            evaluator.extend(state["tests"].workloads, state["tests"].values)
        begin_building(evaluator)
        yield Context(
            kernel=kernel, evaluator=evaluator, store=store, policies=policies, say=say, usage_before=usage_before
        )


def answering(settings: Settings, kept: Path, state: State, say: Say) -> tuple[dict[Role, Policy], dict[Role, Usage]]:
    """The policy of each role, one object for all roles that share it, and what the run's answers have cost so far.

    Raises RunError where a policy cannot be had: no key, no model, no transcript.
    """
    before = dict(state.get("spent", Spent()).usage)
    made: dict[str, Policy] = {}
    for name in sorted(set(settings.policy.values())):
        if name == "rules":
            made[name] = _rules()
            continue
        from nodes.policies.transcript import Transcript, TranscriptDamaged

        try:
            transcript = Transcript(kept)
            before |= transcript.usage()  # an answer is in it before any checkpoint is, so it is the better ledger
            if name == "client":
                from nodes.policies.client import ClientPolicy

                made[name] = ClientPolicy(transcript, say)
                continue
            made[name] = (
                _chat(settings, transcript, before, say) if name == "chat" else _replay(settings, transcript, say)
            )
        except (TranscriptDamaged, ValueError) as error:
            raise RunError(str(error)) from None
    return {role: made[settings.policy[role]] for role in ROLES}, before


def _rules() -> Policy:
    from nodes.policies.rules import RulesPolicy

    return RulesPolicy()


def _reference(settings: Settings) -> str:
    """The text of the kernel's reference.py; "" of a module, which has none, and of a kernel that is not there, as who loads it says."""
    try:
        file = pytorch.find_definition(settings.kernel) / "reference.py"
    except KernelError:
        return ""
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _rewrites(settings: Settings) -> dict[str, str] | None:
    """What rules can carry out, where a model plans for them."""
    if settings.policy["coder"] != "rules":
        return None
    from nodes import compiling
    from nodes.rewrites import catalog as rewrites

    found = {name: rewrite.expected for name, rewrite in rewrites().items() if settings.device in rewrite.languages}
    return {compiling.STEP: compiling.EXPECTED, **found}


def _chat(settings: Settings, transcript, spent: dict[Role, Usage], say: Say) -> Policy:
    key = os.environ.get("OPENAI_API_KEY")
    if not key:
        raise RunError("--policy chat needs a key in OPENAI_API_KEY (any text for a server that asks for none)")
    from pydantic import SecretStr

    from nodes.policies.chat import ChatPolicy
    from nodes.policies.connection import Connection, Retries

    address, chat = os.environ.get("OPENAI_BASE_URL"), settings.chat
    return ChatPolicy(
        chat,
        transcript,
        Connection(address, SecretStr(key), chat.interface, Retries.of(chat), say),
        limits=settings.budget,
        spent=spent,
        fallback=_rules() if settings.budget.fallback == "rules" else None,
        agents=settings.agents,
        rewrites=_rewrites(settings),
        reference=_reference(settings),
        say=say,
    )


def _replay(settings: Settings, transcript, say: Say) -> Policy:
    from nodes.policies.replay import ReplayPolicy

    recorded, rewrites, reference = Path(settings.transcript), _rewrites(settings), _reference(settings)
    return ReplayPolicy(recorded, kept=transcript, rewrites=rewrites, reference=reference, say=say)
