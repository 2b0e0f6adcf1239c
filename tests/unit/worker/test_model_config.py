"""`model.yaml` and `config.pbtxt`: what is taken, what is refused, and how that is said."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace_worker import model_config, triton_config
from headrace_worker.model_config import ConfigProblem


def parse(**document: Any) -> model_config.ModelConfig:
    return model_config.parse(document, name="model.yaml")


def test_an_unknown_key_is_refused_with_the_nearest_right_name() -> None:
    with pytest.raises(ConfigProblem, match=r"unknown key max_batch_row; did you mean max_batch_rows\?"):
        parse(max_batch_row=4)
    with pytest.raises(ConfigProblem, match=r"unknown key queue\.max_queue_dely; did you mean max_queue_delay\?"):
        parse(queue={"max_queue_dely": 1})


def test_yaml_booleans_are_understood_as_on_and_off(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("batching: off\nqueue:\n  max_queue_delay: 5ms\nbatch_axes: {sr: null, state: 1}\n")
    config = model_config.read(path)
    assert config.batching == "off"
    assert config.queue.max_queue_delay == timedelta(milliseconds=5)
    assert config.batch_axes == {"sr": None, "state": 1}


@pytest.mark.parametrize("text", ["a: b: c", "- 1", "\tx: 1"])
def test_what_is_no_mapping_is_said_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(ConfigProblem) as problem:
        model_config.read(path)
    assert str(problem.value).startswith("model.yaml")
    assert str(tmp_path) not in str(problem.value)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "CPU", ""])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(ConfigProblem, match="device"):
        parse(device=device)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [("latest", ["10"]), ({"latest": 2}, ["9", "10"]), ("all", ["2", "9", "10"]), ([2, 7], ["2"])],
)
def test_version_policies_count_as_numbers(policy: Any, chosen: list[str]) -> None:
    assert parse(versions=policy).versions.choose(["10", "9", "2"]) == chosen


def test_a_triton_configuration_maps_and_names_what_does_not(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(
        """
        name: "m"
        backend: "onnxruntime"
        max_batch_size: 16
        input [{ name: "x" data_type: TYPE_FP32 dims: [4] }]
        dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: [4, 8]
          default_queue_policy { max_queue_size: 7 default_timeout_microseconds: 9000 } }
        instance_group [{ count: 3 kind: KIND_CPU }]
        optimization { graph { level: -1 } }
        parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
        parameters { key: "session.x" value: { string_value: "2" } }
        response_cache { enable: true }
        version_policy { specific { versions: [1, 3] } }
        """
    )
    translated = triton_config.read(path, model="m")
    config = model_config.parse(translated.document, name="model.yaml")
    assert (config.max_batch_rows, config.instances, config.device, config.intra_op_threads) == (16, 3, "cpu", 2)
    assert config.optimisation == "basic"
    assert config.queue.max_queue_delay == timedelta(microseconds=500)
    assert config.queue.max_queue_requests == 7
    assert config.queue.default_timeout == timedelta(milliseconds=9)
    assert config.versions.choose(["1", "2", "3"]) == ["1", "3"]
    told = " ".join(translated.notes)
    assert all(word in told for word in ("preferred_batch_size", "response_cache", "session.x"))


@pytest.mark.parametrize(
    "text", ['backend: "python"', 'platform: "tensorrt_plan"', 'name: "other"', "nonsense { {", "no_such_field: 1"]
)
def test_a_triton_configuration_for_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    with pytest.raises(ConfigProblem):
        triton_config.read(path, model="m")
