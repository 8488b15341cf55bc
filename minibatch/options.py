"""Options of `epoch` and `infer`: what was given, else what the checkpoint says, else the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from minibatch import models
from minibatch.graphs import GraphError
from minibatch.request import EpochRequest, GraphRequest, InferRequest

if TYPE_CHECKING:
    from minibatch.request import ResolvedEpoch, ResolvedInference

Request = TypeVar("Request", bound=GraphRequest)

DEFAULTS: dict[str, Any] = {
    "model": "sage", "fanout": [15, 10, 5], "batch": 1024, "hidden": None, "lr": 0.003, "seed": 0, "schedule": "constant",
    "patience": None, "loss": None,
}  # fmt: skip
"""All that a resumed run must have as the run before had it, and a checkpoint holds."""
FIXED = ("model", "hidden", "loss")
"""Options that a checkpoint's weights fix: they cannot be given otherwise."""
FANOUT_OF_INFERENCE = 20


def resolve(request: EpochRequest, state: dict[str, Any] | None) -> ResolvedEpoch:
    """With the options that were left out. Raises GraphError where a given one does not fit the checkpoint's state."""
    return cast("ResolvedEpoch", _resolve(request, state))


def _resolve(request: Request, state: dict[str, Any] | None) -> Request:
    """With the options that were left out. Raises GraphError where a given one does not fit the checkpoint's state."""
    held = state["options"] if state else {}
    missing = {}
    for name, default in DEFAULTS.items():
        given = getattr(request, name, None)
        if given is not None and state is not None and name in FIXED and held.get(name) not in (None, given):
            raise GraphError(
                f"the checkpoint's --{name} is {held[name]}, and {given} was given: leave --{name} out, or train anew"
            )
        if given is None and name in type(request).model_fields:
            missing[name] = held.get(name, default)
    request = request.with_(**missing)
    layers = len(request.fanout or ())
    if "fanout" in held and len(held["fanout"]) != layers:
        raise GraphError(f"the model has {len(held['fanout'])} layers, and --fanout names {layers}")
    return request


def resolve_inference(request: InferRequest, state: dict[str, Any]) -> ResolvedInference:
    """The same for inference, which has a fanout and a batch of its own."""
    layers = len(state["options"].get("fanout", DEFAULTS["fanout"]))
    own = {
        "fanout": request.fanout or [FANOUT_OF_INFERENCE] * layers,
        "batch": request.batch or DEFAULTS["batch"],
        "seed": request.seed or 0,
    }
    return cast("ResolvedInference", _resolve(request.with_(**own), state))


def select_stored(request: ResolvedEpoch, hidden: int) -> dict[str, Any]:
    """What of the options a checkpoint holds."""
    return {name: getattr(request, name) for name in DEFAULTS} | {"fanout": list(request.fanout), "hidden": hidden}


def model_name(model: str | None) -> str:
    """A model's name as part of a file's."""
    name = model or DEFAULTS["model"]
    return name.rpartition("/")[2].replace(":", "-") if models.is_own(name) else name
