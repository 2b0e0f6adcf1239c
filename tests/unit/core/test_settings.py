"""Settings: flags before variables, durations with units, and a hint for every misspelt name."""

from datetime import timedelta

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from headrace_core.settings import Duration, Settings, explain, unknown_variables


class Sample(Settings):
    model_config = SettingsConfigDict(env_prefix="SAMPLE_")

    drain_timeout: Duration = timedelta(seconds=30)
    """How long."""
    size: int = 3
    """How many."""


def test_flags_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_SIZE", "4")
    assert Sample.from_arguments([]).size == 4
    assert Sample.from_arguments(["--size", "5"]).size == 5


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("2m", 120), ("7", 7), ("1.5s", 1.5), ("10us", 1e-5), ("1h", 3600)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert Sample.from_arguments(["--drain-timeout", text]).drain_timeout == timedelta(seconds=seconds)


def test_a_misspelt_variable_is_reported_with_the_nearest_name_and_kubernetes_own_are_not() -> None:
    environ = {
        "SAMPLE_DRAIN_TIMOUT": "1",
        "SAMPLE_SIZE": "1",
        "OTHER": "1",
        "SAMPLE_SERVICE_HOST": "10.0.0.1",
        "SAMPLE_PORT_8001_TCP_ADDR": "10.0.0.1",
    }
    assert unknown_variables(Sample, environ=environ) == [
        "SAMPLE_DRAIN_TIMOUT is no setting; did you mean SAMPLE_DRAIN_TIMEOUT?"
    ]


def test_a_wrong_value_names_the_flag_and_the_variable() -> None:
    with pytest.raises(ValidationError) as wrong:
        Sample.from_arguments(["--size", "many"])
    (sentence,) = explain(wrong.value, settings=Sample)
    assert sentence.startswith("--size (SAMPLE_SIZE) is 'many': ")


def test_settings_are_frozen() -> None:
    settings = Sample.from_arguments([])
    with pytest.raises(ValidationError):
        settings.size = 4


def test_a_length_of_time_that_is_none_says_how_to_write_one() -> None:
    with pytest.raises(ValidationError) as wrong:
        Sample.from_arguments(["--drain-timeout", "soon"])
    assert explain(wrong.value, settings=Sample) == [
        "--drain-timeout (SAMPLE_DRAIN_TIMEOUT) is 'soon': no length of time: 250ms, 30s, 2m and 1h are"
    ]
