"""Whether a model's rows may run together, found out by running it: rows alone, then the same rows together (V08).

Declared shapes can't tell: a mean over the batch keeps every shape and mixes every caller's row into every answer.
So values are compared, row by row. Then the cost of 1, 2, 4, … rows is measured, because a model that can batch need
not gain by it.

Tolerance: floating-point rows must agree within 1e-3 of the output's own scale (runs of different sizes use different
kernels). Dynamically quantised models take their scale from the whole batch, so rows do influence each other a
little; they are accepted within 5e-2, and the model's notes say so.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any, Final, Literal

import numpy as np

from headrace_worker.feeding import Recipe, Rows, leaves_no_doubt, recipes
from headrace_worker.session import Array, LoadFailed, Rejected, RunFailed, Session, safe_message
from headrace_worker.signature import Axes, Signature, guesses

log: Final = logging.getLogger(__name__)

TOLERANCE: Final = 1e-3
QUANTISED_TOLERANCE: Final = 5e-2
WORTHWHILE: Final = 1.1
"""Batching is switched on if some size runs this many times more rows per second than one row does."""
COST_BUDGET: Final = timedelta(seconds=1)
SEARCH_BUDGET: Final = timedelta(seconds=3)

# Two models measured at once would measure each other.
_measuring: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Finding:
    """What the probe found out."""

    signature: Signature
    batches: bool
    """Rows may run together."""
    pays: bool
    """…and more rows per second come of it."""
    why: str
    """The reason in a sentence, fit for the model's status."""
    costs: tuple[tuple[int, float], ...] = ()
    """Rows and the microseconds that running them took."""
    ran: bool = True
    """Whether any run succeeded; without one the model is unproven."""


class _Mixed(Exception):
    """Rows can't run together under this guess; the text says why."""


def probe(
    session: Session,
    signature: Signature,
    *,
    batch_axes: Mapping[str, int | None],
    examples: Mapping[str, Any],
    max_rows: int,
    quantised: bool,
    batching: Literal["auto", "on", "off"] = "auto",
) -> Finding:
    """Runs the model and reports.

    `batching` is the operator's word: `on` takes it that rows are independent (shapes are still learnt, values not
    compared), `off` tries no axes.

    Raises:
        LoadFailed: the model can't run at all: inputs that it must take make it fail.
    """
    guessed = guesses(signature.inputs, given=batch_axes) if batching != "off" else []
    why = "" if guessed else "no input has a dynamic axis that could count rows"
    if batching == "off":
        why = "batching is switched off"
    for axes in guessed:
        try:
            rows, _ = _first_that_runs(session, signature, axes=axes, examples=examples)
            together = _Together(session, signature, axes, batch_axes, rows)
            outputs = together.output_axes()
            if batching != "on":
                together.compare(outputs, tolerance=QUANTISED_TOLERANCE if quantised else TOLERANCE)
        except _Mixed as mixed:
            why = why or str(mixed)
            continue
        except _NothingRan:
            continue
        found = signature.with_axes(axes, outputs).corrected(together.output_shapes())
        costs = _costs(session, rows, outputs=[one.name for one in signature.outputs], max_rows=max_rows)
        return _judged(found, costs, quantised=quantised)
    return _alone(session, signature, examples=examples, why=why)


def _judged(signature: Signature, costs: tuple[tuple[int, float], ...], *, quantised: bool) -> Finding:
    single = costs[0][1]
    best_rows, best = max(((rows, rows * single / cost) for rows, cost in costs), key=lambda one: one[1])
    note = "; dynamically quantised, so rows in a batch influence each other a little" if quantised else ""
    if best < WORTHWHILE:
        return Finding(
            signature=signature,
            batches=True,
            pays=False,
            costs=costs,
            why=f"rows can run together, but gain nothing by it here (best {best:.2f}× the rows per second)" + note,
        )
    return Finding(
        signature=signature,
        batches=True,
        pays=True,
        costs=costs,
        why=f"rows alone and together agree; {best_rows} together run {best:.1f}× the rows per second" + note,
    )


def _alone(session: Session, signature: Signature, *, examples: Mapping[str, Any], why: str) -> Finding:
    """The finding for a model whose rows can't run together."""
    names = [one.name for one in signature.outputs]
    try:
        rows, outputs = _first_that_runs(session, signature, axes={}, examples=examples)
    except _NothingRan as nothing:
        if examples or leaves_no_doubt(signature.inputs, axes={}):
            raise LoadFailed(f"it can't run: {nothing}") from nothing
        return Finding(
            signature=signature,
            batches=False,
            pays=False,
            ran=False,
            why=f"served unbatched and unproven: it took none of the inputs made up for it ({nothing}); "
            "give one under `examples` in model.yaml",
        )
    shapes = {name: array.shape for name, array in zip(names, outputs, strict=True)}
    costs = _costs(session, rows, outputs=names, max_rows=1)
    return Finding(
        signature=signature.corrected(shapes), batches=False, pays=False, costs=costs, why=f"served unbatched: {why}"
    )


class _NothingRan(Exception):
    """No made-up input was taken; the text has the last refusal."""


def _first_that_runs(
    session: Session, signature: Signature, *, axes: Axes, examples: Mapping[str, Any]
) -> tuple[Rows, list[Array]]:
    names = [one.name for one in signature.outputs]
    started, last = perf_counter(), "no recipe"
    for recipe in recipes(signature.inputs, axes=axes):
        if perf_counter() - started > SEARCH_BUDGET.total_seconds():
            break
        rows = _rows(signature, axes, recipe, examples)
        try:
            return rows, session.run(names, rows.feed([0]))
        except Rejected as error:
            last = str(error)
        except RunFailed as error:
            last = safe_message(str(error))
    raise _NothingRan(last)


def _rows(signature: Signature, axes: Axes, recipe: Recipe, examples: Mapping[str, Any]) -> Rows:
    try:
        return Rows(signature.inputs, axes=axes, recipe=recipe, examples=examples, rows=4)
    except ValueError as error:
        raise LoadFailed(str(error)) from error


class _Together:
    """Three rows run alone and together under one guess of the axes."""

    def __init__(
        self, session: Session, signature: Signature, axes: Axes, given: Mapping[str, int | None], rows: Rows
    ) -> None:
        self._names = [one.name for one in signature.outputs]
        self._given = given
        self._axes = axes
        self._alone = [session.run(self._names, rows.feed([row])) for row in range(3)]
        self._again = session.run(self._names, rows.feed([0]))
        try:
            self._joined = session.run(self._names, rows.feed([0, 1, 2]))
            self._reversed = session.run(self._names, rows.feed([2, 1, 0]))
        except (Rejected, RunFailed) as error:
            raise _Mixed(f"one row runs, three together don't ({safe_message(str(error))})") from error

    def output_axes(self) -> dict[str, int | None]:
        """The axis of each output that grew from 1 to 3 with the rows."""
        axes: dict[str, int | None] = {}
        for at, name in enumerate(self._names):
            one, three = self._alone[0][at].shape, self._joined[at].shape
            grew = [
                axis
                for axis in range(len(one))
                if len(one) == len(three)
                and one[axis] == 1
                and three[axis] == 3
                and all(a == b for other, (a, b) in enumerate(zip(one, three, strict=True)) if other != axis)
            ]
            if self._given.get(name) is not None and self._given[name] in grew:
                grew = [axis for axis in grew if axis == self._given[name]]
            if not grew:
                raise _Mixed(f"output {name!r} has no batch axis: {list(one)} for one row, {list(three)} for three")
            axes[name] = grew[0]
        return axes

    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self._alone[0][at].shape for at, name in enumerate(self._names)}

    def compare(self, axes: Axes, *, tolerance: float) -> None:
        """Raises `_Mixed` unless every row's answer is the same alone, first and last in a batch."""
        for at, name in enumerate(self._names):
            axis = axes[name]
            assert axis is not None
            if _difference(self._alone[0][at], self._again[at]) > 0:
                raise _Mixed(f"output {name!r} differs from run to run with the same input, so rows can't be compared")
            for row in range(3):
                alone = self._alone[row][at]
                for order, batch in ((row, self._joined[at]), (2 - row, self._reversed[at])):
                    apart = _difference(alone, np.take(batch, [order], axis=axis))
                    if not apart <= tolerance:
                        raise _Mixed(f"a row's {name!r} depends on the other rows of its batch (off by {apart:.2g})")


def _difference(one: Array, other: Array) -> float:
    """The greatest difference, relative to the scale of the first; 0 or infinity where values have no distance."""
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind != "f":
        if one.dtype == np.uint16:
            # Perhaps bfloat16 in disguise: neighbouring bit patterns are neighbouring values.
            return float(np.max(np.abs(one.astype(np.int64) - other.astype(np.int64)), initial=0)) / 128
        return 0.0 if np.array_equal(one, other) else float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    if not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return float("inf")
    finite = np.isfinite(first)
    scale = float(np.max(np.abs(first[finite]), initial=0.0)) or 1.0
    return float(np.max(np.abs(first[finite] - second[finite]), initial=0.0)) / scale


def _costs(session: Session, rows: Rows, *, outputs: Sequence[str], max_rows: int) -> tuple[tuple[int, float], ...]:
    """Microseconds of 1, 2, 4, … rows, as far as the budget goes; one row always.

    Neighbours on the machine only ever add time, so each size counts with its fastest run, and one row, which all the
    others are compared with, is measured again at the end.
    """
    found: dict[int, float] = {}
    budget = COST_BUDGET.total_seconds()
    with _measuring:
        started, count = perf_counter(), 1
        while count <= max_rows:
            try:
                found[count] = _timed(session, outputs, rows.feed(list(range(count))), limit=budget / 10)
            except (Rejected, RunFailed):
                break  # no memory for so many, perhaps: the sizes that ran are enough
            left = budget - (perf_counter() - started)
            # The next size takes about twice as long, three times.
            if left < found[count] * 7:
                break
            count *= 2
        if len(found) > 1:
            found[1] = min(found[1], _timed(session, outputs, rows.feed([0]), limit=budget / 10))
    return tuple((count, took * 1e6) for count, took in found.items()) or ((1, 1000.0),)


def _timed(session: Session, outputs: Sequence[str], feed: Mapping[str, Any], *, limit: float) -> float:
    """The fastest run in seconds, of two at least and 50 at most, or as many as fit `limit` seconds."""
    session.run(outputs, feed)
    fastest, used, runs = float("inf"), 0.0, 0
    while runs < 2 or (used < limit and runs < 50):
        started = perf_counter()
        session.run(outputs, feed)
        took = perf_counter() - started
        fastest, used, runs = min(fastest, took), used + took, runs + 1
    return fastest
