"""Errors survive the wire as themselves, and both halves hold one table."""

from datetime import timedelta

import grpc
import pytest

import headrace_batcher
from headrace_core import errors
from headrace_core.errors import ForeignStatus, ServingError, Violation, from_status, to_trailers

KINDS = [one for one in ServingError.__subclasses__() if one is not ForeignStatus]


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_every_error_comes_back_as_the_type_that_was_raised(kind: type[ServingError]) -> None:
    sent = kind("what", violations=[Violation("inputs[x].shape", "wrong")], retry_after=timedelta(milliseconds=1500))
    came = from_status(sent.code, sent.message, trailers=to_trailers(sent))
    assert type(came) is kind
    assert (came.message, came.violations, came.retry_after) == (sent.message, sent.violations, sent.retry_after)


def test_the_reason_alone_is_enough_when_a_proxy_drops_the_details() -> None:
    came = from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailers=[(errors.REASON_KEY, "QUEUE_FULL")])
    assert type(came) is errors.QueueFull


@pytest.mark.parametrize(
    "trailers",
    [
        [],
        [(errors.REASON_KEY, "NO_SUCH_REASON")],
        [(errors.DETAILS_KEY, b"\xff\xff not a message")],
        [(errors.REASON_KEY, "QUEUE_FULL")],  # the code doesn't go with it
    ],
)
def test_a_status_of_somebody_else_keeps_its_code(trailers: list[tuple[str, str | bytes]]) -> None:
    came = from_status(grpc.StatusCode.UNAVAILABLE, "upstream reset", trailers=trailers)
    assert isinstance(came, ForeignStatus)
    assert came.code is grpc.StatusCode.UNAVAILABLE


def test_an_error_without_a_code_of_its_own_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="must name its own code and reason"):
        type("Vague", (ServingError,), {})


def test_long_messages_are_cut_at_a_character_and_details_stay_small() -> None:
    cut = errors.cut("ü" * 2000)
    assert len(cut.encode()) <= errors.MAX_MESSAGE_BYTES
    assert cut.endswith("…")
    many = errors.InvalidTensor("ü" * 5000, violations=[Violation("f" * 3000, "d" * 3000)] * 100)
    details = dict(to_trailers(many))[errors.DETAILS_KEY]
    assert len(details) < 24 * 1024


def test_both_halves_hold_the_same_table() -> None:
    ours = {reason: code.value[0] for reason, code in errors.table().items()}
    assert headrace_batcher.status_table() == ours
