"""A recurrent layer as one kernel: all of its steps, and all layers where each needs only those below it.

A cell is a layer, or one direction of it. A warp owns a hidden unit of a cell and keeps the unit's weights in registers; a step is
a product of these with what all units of the cell were a step before. Blocks tell each other nothing but that: the outputs are filled
with a pattern that is no unit's value, and whoever needs a value reads until it is another. All blocks have to run at once for
that, so the launch is a cooperative one. Where the cells are layers, a layer works on one step while the one below works on later ones.
"""

from __future__ import annotations

from .cuda import whole
from .emit import Emitter
from .hopper import MULTIPROCESSORS
from .index import product
from .partition import Kernel, Partition
from .printing import index_text
from .tensors import Buffer, Recurrence

WARPS = (4, 16)
"""Fewest and most units of a block. With fewer more blocks read what was a step before; with more registers do not hold their weights."""
WIDEST = 32
"""Units of a block where a device has fewer multiprocessors."""
SUMS = 40
"""Sums that a thread keeps beside its weights."""
KEPT = 64
"""Weights that a thread keeps."""
SHARED_FLOATS = 11000
"""Of a block's rows in shared memory: what stands there without being asked for is 48 KiB."""
GATES = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}
"""Rows of the weights that belong to a hidden unit."""


def padded(hidden: int) -> int:
    """Floats of a row of packed weights: it is read by four."""
    return -(-hidden // 4) * 4


def parts(recurrence: Recurrence) -> int:
    """Sums of a unit: a GRU's third gate takes what comes from the input and from the step before apart."""
    return 4 if recurrence.cell == "gru" else GATES[recurrence.cell]


def warps(recurrence: Recurrence) -> int:
    """Units of a block with which there are no more blocks than multiprocessors."""
    least, most = WARPS[0], WIDEST
    return next(
        (n for n in range(least, most) if recurrence.cells * -(-recurrence.hidden // n) <= MULTIPROCESSORS), most
    )


def weights_a_thread(recurrence: Recurrence) -> int:
    return (
        GATES[recurrence.cell]
        * -(-padded(recurrence.hidden) // 128)
        * 4
        * (2 if recurrence.cells > 1 and recurrence.layers else 1)
    )


def fits(recurrence: Recurrence) -> bool:
    """Whether all units run at once on the device with their weights in registers."""
    return (
        weights_a_thread(recurrence) <= KEPT and recurrence.cells * -(-recurrence.hidden // WARPS[1]) <= MULTIPROCESSORS
    )


def runs(recurrence: Recurrence) -> bool:
    """Whether all units run at once at all, and a row of what was a step before has room."""
    blocks = recurrence.cells * -(-recurrence.hidden // WIDEST)
    return blocks <= MULTIPROCESSORS and 3 * padded(recurrence.hidden) <= SHARED_FLOATS


class RecurrenceEmitter(Emitter):
    """Prints a `recurrence` definition; cuda/recurrences.cuh has the steps."""

    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        super().__init__(kernel, partition, device)
        found = kernel.members[0].definition.recurrence
        assert found is not None
        self.recurrence: Recurrence = found

    def _packs(self):
        return {}

    def writes(self) -> list[Buffer]:
        return self.kernel.members[0].definition.outs

    def summary(self) -> str:
        r = self.recurrence
        return (
            f"{r.cell}: {index_text(r.steps)} steps of {r.cells} {'layers' if r.layers else 'directions'} of {r.hidden} units, "
            f"{index_text(r.batch)} rows"
        )

    def _fields(self) -> list[tuple[str, str]]:
        """(field of the struct in cuda/recurrences.h, what it is set to)."""
        r, names = self.recurrence, {use: buffer.name for use, buffer in self.recurrence.buffers.items()}
        features = r.hidden if r.layers else r.cells * r.hidden
        given = GATES[r.cell] * (r.hidden if r.layers else r.cells * r.hidden)
        steps, batch = index_text(r.steps), index_text(r.batch)
        strides = (f"({steps})", "1") if r.batch_first else ("1", f"({batch})")
        initial = f" + {r.first * r.hidden} * ({batch})" if r.first else ""
        return [
            ("steps", steps), ("batch", batch),
            ("given", names["given"]), ("weights", names["weights"]), ("from_below", names.get("from_below", "nullptr")),
            ("bias", names["bias"]), ("hidden", names["hidden"] + initial),
            ("state", names["state"] + initial if "state" in names else "nullptr"),
            ("out", names["out"]), ("below", names.get("below", "nullptr")), ("last", names["last"]),
            ("last_state", names.get("last_state", "nullptr")),
            ("given_row", f"{strides[0]} * {given}"), ("given_step", f"{strides[1]} * {given}"),
            ("out_row", f"{strides[0]} * {features}"), ("out_step", f"{strides[1]} * {features}"),
        ]  # fmt: skip

    def _shape(self) -> str:
        """The template's arguments but for the block's width."""
        r, rows = self.recurrence, self.partition.program.estimate(self.recurrence.batch)
        most = min(SUMS // parts(r), max(1, SHARED_FLOATS // (3 * padded(r.hidden))))
        together = -(-rows // -(-rows // most))
        rounds = f", {str(r.rounds[0]).lower()}, {str(r.rounds[1]).lower()}" if self.device == "cuda" else ""
        return f"Cell::{r.cell}, {r.hidden}, {together}, {r.cells}, {str(r.layers).lower()}{rounds}"

    def text(self) -> str:
        r = self.recurrence
        kept = weights_a_thread(r) <= KEPT and warps(r) <= WARPS[1]
        call = f"steps_of_cells<{self._shape()}>(recurrence)"
        if self.device == "cuda":
            call = f"run_cells<{self._shape()}, {warps(r)}, {str(kept).lower()}>(recurrence, stream)"
        fills = []
        if self.device == "cuda":
            for buffer in (r.buffers["out"], r.buffers.get("below")):
                if buffer is not None:
                    bytes = f"({index_text(product(buffer.shape))}) * sizeof(float)"
                    fills.append(f"    cudaMemsetAsync({buffer.name}, 0xff, {bytes}, stream);")
        parameters = [*self.parameters(), *(["cudaStream_t stream"] if self.device == "cuda" else [])]
        return "\n".join(
            [
                f"// {self.summary()}",
                f'extern "C" void {self.kernel.name}(',
                f"    {', '.join(parameters)}) {{",
                "    Recurrence recurrence;",
                *(f"    recurrence.{field} = {text};" for field, text in self._fields()),
                *fills,
                f"    {call};",
                "}",
                "",
            ]
        )


def prelude(device: str) -> str:
    return whole("recurrences.h", device) + whole("recurrences.cuh" if device == "cuda" else "recurrences_cpp.h")
