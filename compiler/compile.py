"""reference -> programs -> schedule -> text."""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.cpu_host import CPU_NUMBERS, CpuFile
from compiler.codegen.host import HostFile
from compiler.defaults import ScheduleDefaults, cpu_schedule, open_numbers, schedule
from compiler.evaluate import check
from compiler.frontend import NoProgram, Traced, trace
from compiler.kernel import CPU_SHORT_FOLD, SHORT_FOLD
from compiler.legal import check_schedule
from compiler.program import KernelProgram, lower_program
from compiler.schedule import Schedule
from kernels.spec import Device, Spec, Workload

FIRST_WITH_CLUSTERS = 90
MANY_REDUCTIONS = 20
"""Of a kernel, from which on they go one after another through memory; nvcc took more than 45 s of processor time for one of forty, a gate of four of eight groups."""


def source(
    spec: Spec, reference: str, architecture: str = "sm_90", device: Device = "cuda", exact: bool = False
) -> str:
    """A candidate for the kernel with its numbers left open, checked against the reference. Raises NoProgram.

    On CUDA `architecture` says what the device can; C++ leaves that to its compiler. `exact`: no function is approximate.
    """
    meaning = Meaning(spec, reference, exact)
    dtypes, sized = sizes_of(spec, device)
    first = meaning.first_schedule(architecture, device)
    if device == "cpu":
        text = meaning.text(first, CPU_NUMBERS)
    else:
        program, clusters = meaning.program(dtypes[0], 1), has_clusters(architecture)
        text = meaning.text(first, open_numbers(program, [w for found in sized.values() for w in found], clusters))
    for found in meaning.programs():
        check(found, reference)
    return text


def has_clusters(architecture: str) -> bool:
    return int("".join(filter(str.isdigit, architecture)) or 0) >= FIRST_WITH_CLUSTERS


def sizes_of(spec: Spec, device: Device) -> tuple[tuple[str, ...], dict[str, list[Workload]]]:
    """(dtypes, the timed workloads of each that agents may see) on a device. Raises NoProgram."""
    workloads = [w for w in spec.workloads if device in w.devices]
    dtypes = tuple(dtype for dtype in spec.dtypes if any(w.dtype == dtype for w in workloads))
    if not dtypes:
        raise NoProgram(f"the kernel has no workload for {device}")
    return dtypes, {
        dtype: [w for w in workloads if w.dtype == dtype and w.timed and not w.held_out] for dtype in dtypes
    }


class Meaning:
    """What a kernel's reference computes, traced once and lowered for each dtype and pack width that is asked for."""

    def __init__(self, spec: Spec, reference: str, exact: bool = False) -> None:
        self.spec, self.reference, self.exact = spec, reference, exact
        self.in_memory = False
        self.traced: dict[str, Traced] = {}
        self._programs: dict[tuple[str, int, int], KernelProgram] = {}

    def program(self, dtype: str, vector: int) -> KernelProgram:
        """For CUDA. Raises NoProgram."""
        return self._program(dtype, vector, SHORT_FOLD)

    def cpu_program(self, dtype: str, vector: int) -> KernelProgram:
        """Raises NoProgram."""
        return self._program(dtype, vector, CPU_SHORT_FOLD)

    def _program(self, dtype: str, vector: int, short_fold: int) -> KernelProgram:
        if dtype not in self.traced:
            self.traced[dtype] = trace(self.spec, self.reference, dtype)
        key = dtype, vector, short_fold
        if key not in self._programs:
            found = lower_program(self.spec, self.traced[dtype], dtype, vector, self.in_memory, short_fold)
            self._programs[key] = replace(found, exact=self.exact)
        return self._programs[key]

    def programs_for(self, device: Device):
        return self.program if device == "cuda" else self.cpu_program

    def programs(self) -> list[KernelProgram]:
        """Those that were asked for."""
        return list(self._programs.values())

    def first_schedule(self, architecture: str, device: Device) -> Schedule:
        """The compiler's own. Raises NoProgram."""
        dtypes, sized = sizes_of(self.spec, device)
        if device == "cpu":
            return cpu_schedule(self.cpu_program, dtypes, sized)
        kernels = self.program(dtypes[0], 1).kernels
        if max((sum(bool(m.definition.reduced) for m in k.members) for k in kernels), default=0) > MANY_REDUCTIONS:
            self.in_memory = True
            self._programs.clear()
        return schedule(self.program, dtypes, sized, ScheduleDefaults(clusters=has_clusters(architecture)))

    def scheduled(self, wanted: Schedule, architecture: str) -> str:
        """The source under a schedule that somebody wrote, nothing of it left open, checked as `source` checks its own.

        Raises IllegalSchedule, NoProgram.
        """
        check_schedule(wanted, self.first_schedule(architecture, wanted.device), self.programs_for(wanted.device))
        text = self.text(wanted)
        for found in self.programs():
            check(found, self.reference)
        return text

    def text(self, schedule: Schedule, open: dict[str, tuple[int, ...]] | None = None) -> str:
        """The candidate's source under a schedule; numbers named in `open` are left to the tune gate. Raises NoProgram."""
        programs = self.programs_for(schedule.device)
        file = (HostFile if schedule.device == "cuda" else CpuFile)(self.spec, programs, open)
        for dtype, versions in schedule.versions.items():
            file.entry(dtype, versions)
        return file.text(schedule)
