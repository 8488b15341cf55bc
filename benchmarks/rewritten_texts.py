"""What the rules plan and write for every input, as hashes: two versions of the rules that should agree are compared so.

    python -m benchmarks.rewritten_texts FILE [--plans 8] [--drafts FOLDER]     writes
    python -m benchmarks.rewritten_texts FILE --against OTHER [--diff]          compares; status 1 where they differ

For each input the first plans' texts and expected speedups, and what each step by itself makes of the source and of the
first plan's text. Steps are compared by what they make, so a step may be renamed or joined with another.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.rewrite_inputs import FACTS, Input, inputs
from harness.store import digest
from nodes.policies.rules import RulesPolicy, apply_step
from nodes.rewrites import Facts, ordered
from nodes.roles import CoderRequest


def read(one: Input, plans: int) -> dict:
    """{first: the first plan's text, first seconds, plans: [hash, speedup], steps: the hashes that single steps make}."""
    policy, found, first = RulesPolicy(), [], one.text
    began = time.process_time()
    answered = policy.planner(one.request())
    first_s = time.process_time() - began
    if plans > 1:
        answered = policy.planner(one.request(plans))
    for plan in answered:
        coded = policy.coder(
            CoderRequest(spec=one.spec, device=one.device, finding=one.request().finding, plan=plan, source=one.text)
        )
        found.append([digest(coded.source), plan.expected_speedup])
        first = coded.source if len(found) == 1 else first
    facts = Facts(spec=one.spec, device=one.device)
    single = [
        digest(text)
        for rewrite in ordered(one.device.device)
        for step in rewrite.forms
        for text in (apply_step(step, start, facts) for start in (one.text, first))
        if text is not None
    ]
    steps = list(answered[0].steps) if answered else []
    return {"first": first, "steps": steps, "first_s": round(first_s, 2), "plans": found, "single": sorted(single)}


def differences(one: dict, other: dict) -> list[str]:
    """A line for each input whose plans or single steps differ."""
    said = []
    for label in sorted(one.keys() | other.keys()):
        here, there = one.get(label), other.get(label)
        if here is None or there is None:
            said.append(f"{label}: only in {'the second' if here is None else 'the first'} file")
            continue
        what = [name for name in ("first", "plans") if here[name] != there[name]]
        more = Counter(here["single"]) - Counter(there["single"]), Counter(there["single"]) - Counter(here["single"])
        if any(more):
            what.append(f"single steps (-{more[1].total()} +{more[0].total()})")
        if what:
            said.append(f"{label}: {', '.join(what)}")
    return said


def diffs(one: dict, other: dict) -> list[str]:
    """What became of each first plan's text, from the second file's to the first's, as unified diffs."""
    said = []
    for label in sorted(one.keys() & other.keys()):
        there, here = (found[label]["first"].splitlines() for found in (other, one))
        said += difflib.unified_diff(there, here, f"{label} before", f"{label} after", n=1, lineterm="")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--plans", type=int, default=8, help="how many of each input (8)")
    parser.add_argument("--drafts", type=Path, help="the drafts of the starter suite too, kept in this folder")
    parser.add_argument("--only", default="", help="inputs whose label holds this")
    parser.add_argument("--device", choices=sorted(FACTS), help="inputs for this one")
    parser.add_argument("--diff", action="store_true", help="with --against: what became of the first plans' texts")
    parser.add_argument("--against", type=Path, help="an earlier file to compare with")
    wanted = parser.parse_args()
    if not wanted.against or not wanted.file.exists():
        found = {}
        for one in inputs(wanted.drafts):
            if wanted.only in one.label and wanted.device in (None, one.device.device):
                found[one.label] = read(one, wanted.plans)
                print(f"{found[one.label]['first_s']:6.2f} s  {one.label}", flush=True)
        wanted.file.write_text(json.dumps(found, indent=1))
    if wanted.against:
        both = json.loads(wanted.file.read_text()), json.loads(wanted.against.read_text())
        said = differences(*both) + (diffs(*both) if wanted.diff else [])
        print("\n".join(said) or "the same")
        return 1 if said else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
