from datetime import timedelta

import pytest

from headrace.retry import NO_RETRIES, Refusal, RetryBudget, RetryPolicy, wait_before_retry

POLICY = RetryPolicy(attempts=4, first_wait=timedelta(milliseconds=100), longest_wait=timedelta(milliseconds=300))
LOST = Refusal(reason="CONNECTION_LOST", retry_after=None, never_sent=False)
LOADING = Refusal(reason="MODEL_LOADING", retry_after=None, never_sent=False)


def wait(refusal: Refusal, *, attempt: int = 1, left: float | None = None, dice: float = 0.0) -> float | None:
    return wait_before_retry(POLICY, attempt=attempt, refusal=refusal, time_left=left, dice=dice)


@pytest.mark.parametrize(
    "reason", ["", "CONNECTION_LOST", "WORKER_LOST", "INFERENCE_FAILED", "OVER_QUOTA", "EXPIRED_IN_QUEUE", "QUEUE_FULL"]
)
def test_what_may_have_run_or_would_add_to_the_load_is_never_repeated(reason: str) -> None:
    assert wait(Refusal(reason=reason, retry_after=None, never_sent=False)) is None


@pytest.mark.parametrize("reason", ["DRAINING", "NO_REPLICA", "MODEL_LOADING"])
def test_refusals_before_the_model_are_repeated(reason: str) -> None:
    assert wait(Refusal(reason=reason, retry_after=None, never_sent=False)) == pytest.approx(0.1)


def test_a_full_queue_is_asked_again_only_when_the_server_says_when() -> None:
    full = Refusal(reason="QUEUE_FULL", retry_after=timedelta(milliseconds=700), never_sent=False)
    assert wait(full) == pytest.approx(0.7)
    assert wait(full, dice=0.5) == pytest.approx(0.875)


def test_what_was_never_sent_is_repeated() -> None:
    assert wait(Refusal(reason="UNREACHABLE", retry_after=None, never_sent=True)) == pytest.approx(0.1)


def test_waits_double_up_to_the_longest_and_then_the_error_is_the_callers() -> None:
    assert [wait(LOADING, attempt=n) for n in (1, 2, 3, 4)] == [pytest.approx(0.1), pytest.approx(0.2), 0.3, None]


def test_jitter_only_shortens_the_planned_wait() -> None:
    assert wait(LOADING, dice=0.999) == pytest.approx(0.05, abs=0.001)


def test_a_wait_that_does_not_fit_the_deadline_is_not_begun() -> None:
    assert wait(LOADING, left=0.1) is None
    assert wait(LOADING, left=0.11) == pytest.approx(0.1)


def test_no_retries_means_none() -> None:
    assert wait_before_retry(NO_RETRIES, attempt=1, refusal=LOADING, time_left=None, dice=0.0) is None


def test_the_budget_runs_out_and_is_earned_back_by_successes() -> None:
    budget = RetryBudget(most=2, earned=0.25)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    for _ in range(3):
        budget.succeeded()
    assert not budget.take()
    budget.succeeded()
    assert budget.take()


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"jitter": 1.5}])
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
