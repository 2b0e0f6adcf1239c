"""Models that batch, models that only look as if they did (V08), and what is served of either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from headrace_worker import loading, model_config
from headrace_worker.model_config import ConfigProblem
from headrace_worker.repository import Repository
from headrace_worker.session import LoadFailed

if TYPE_CHECKING:
    from headrace_worker.loading import Defaults, Loaded
    from tests.unit.worker.conftest import Zoo


def load(zoo: Zoo, defaults: Defaults, name: str = "m", **config: Any) -> Loaded:
    found = Repository(zoo.root).find(name)
    assert found is not None
    configured = loading.configure(found)
    if config:
        parsed = model_config.parse(config, name="model.yaml")
        configured = loading.Configured(parsed, (), None, "", None)
    (files,) = found.versions.values()
    return loading.load(files, configured, defaults=defaults)


def axes(loaded: Loaded) -> dict[str, int | None]:
    return {one.name: one.batch_axis for one in (*loaded.signature.inputs, *loaded.signature.outputs)}


def test_a_fixed_batch_of_one_is_served_unbatched_as_declared(zoo: Zoo, defaults: Defaults) -> None:
    zoo.identity("m", shape=(1, 4))
    loaded = load(zoo, defaults)
    assert not loaded.batching
    assert loaded.signature.inputs[0].dims == (1, 4)
    assert "no input has a dynamic axis" in loaded.notes[0]


@pytest.mark.parametrize("kind", ["mean_over_batch", "centred", "constant_of_one_row"])
def test_rows_that_influence_each_other_are_never_batched(zoo: Zoo, defaults: Defaults, kind: str) -> None:
    getattr(zoo, kind)("m")
    loaded = load(zoo, defaults)
    assert not loaded.batching
    assert loaded.notes[0].startswith("served unbatched: ")
    assert all(axis is None for axis in axes(loaded).values())


def test_only_comparing_values_finds_a_batch_mean(zoo: Zoo, defaults: Defaults) -> None:
    zoo.centred("m")
    assert "depends on the other rows" in load(zoo, defaults).notes[0]
    assert load(zoo, defaults, batching="on").batching  # the operator's word is taken for values, not for shapes


def test_asking_for_batching_where_shapes_forbid_it_is_an_error(zoo: Zoo, defaults: Defaults) -> None:
    zoo.mean_over_batch("m")
    with pytest.raises(ConfigProblem, match="batching is on, but"):
        load(zoo, defaults, batching="on")


def test_a_model_that_gains_by_it_is_batched_with_costs(zoo: Zoo, defaults: Defaults) -> None:
    zoo.matrix("m")
    loaded = load(zoo, defaults, max_batch_rows=8)
    assert loaded.batching
    assert [rows for rows, _ in loaded.costs] == [1, 2, 4, 8]
    assert axes(loaded) == {"x": 0, "y": 0}


def test_a_state_is_batched_on_its_second_axis_and_a_scalar_on_none(zoo: Zoo, defaults: Defaults) -> None:
    zoo.recurrent("m")
    loaded = load(zoo, defaults, batching="on")
    assert axes(loaded) == {"x": 0, "state": 1, "rate": None, "y": 0, "next": 1}
    assert loaded.signature.outputs[1].dims == (2, -1, 3)


def test_dynamic_lengths_and_small_indices_are_found_by_trying(zoo: Zoo, defaults: Defaults) -> None:
    zoo.gather("m", words=2)
    loaded = load(zoo, defaults, batching="on")
    assert axes(loaded) == {"ids": 0, "y": 0}


def test_an_input_that_nothing_made_up_fits_is_served_with_a_note(zoo: Zoo, defaults: Defaults) -> None:
    zoo.gather("m", words=0)
    loaded = load(zoo, defaults)
    assert not loaded.batching
    assert "unproven" in loaded.notes[0]


def test_a_wrong_declared_output_shape_is_corrected_by_what_came(zoo: Zoo, defaults: Defaults) -> None:
    path = zoo.add("m")
    model = onnx.load(str(path))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, str(path))
    loaded = load(zoo, defaults, batching="on")
    assert loaded.signature.outputs[0].dims == (-1, 4)


def test_a_model_that_cannot_run_fails_to_load(zoo: Zoo, defaults: Defaults) -> None:
    zoo.never_runs("m")
    with pytest.raises(LoadFailed, match="can't run"):
        load(zoo, defaults)


def test_names_in_the_configuration_that_the_model_lacks_are_refused(zoo: Zoo, defaults: Defaults) -> None:
    zoo.recurrent("m")
    with pytest.raises(ConfigProblem, match=r"did you mean state\?"):
        load(zoo, defaults, batch_axes={"stat": 1})


@pytest.mark.parametrize("content", [b"", b"\x08\x08\x12", b"not a model at all" * 10])
def test_a_broken_file_fails_without_a_path(zoo: Zoo, defaults: Defaults, content: bytes, tmp_path: Path) -> None:
    zoo.add("m").write_bytes(content)
    with pytest.raises(LoadFailed) as failed:
        load(zoo, defaults)
    assert str(tmp_path) not in str(failed.value)


def test_linked_model_and_data_load_from_a_blob_store(zoo: Zoo, defaults: Defaults, tmp_path: Path) -> None:
    path = zoo.external("m/1")
    blobs = zoo.root / ".blobs"
    blobs.mkdir()
    deep = zoo.root / "/".join(["deep" * 20] * 4)
    deep.mkdir(parents=True)
    for number, one in enumerate(sorted(path.parent.iterdir())):
        target = (blobs if number else deep) / f"{number:064x}"
        one.rename(target)
        one.symlink_to(target)
    assert len(str(deep)) > 255
    assert load(zoo, defaults, batching="on").batching


def test_missing_external_data_fails_without_a_path(zoo: Zoo, defaults: Defaults, tmp_path: Path) -> None:
    path = zoo.external("m/1")
    path.with_name("model.onnx_data").unlink()
    with pytest.raises(LoadFailed) as failed:
        load(zoo, defaults)
    assert str(tmp_path) not in str(failed.value)


def test_a_device_that_is_not_there_is_an_error_and_never_a_fall_back(zoo: Zoo, defaults: Defaults) -> None:
    zoo.add("m")
    with pytest.raises(LoadFailed, match="CUDAExecutionProvider"):
        load(zoo, defaults, device="cuda")


def test_a_session_has_no_more_threads_than_configured(zoo: Zoo, defaults: Defaults) -> None:
    zoo.matrix("m")
    before = len(list(Path("/proc/self/task").iterdir()))
    loaded = load(zoo, defaults)
    after = len(list(Path("/proc/self/task").iterdir()))
    assert loaded.instances == 1
    assert after <= before


@pytest.mark.parametrize("batching", ["auto", "off"])
def test_one_example_row_serves_a_model_that_turns_out_not_to_batch(
    zoo: Zoo, defaults: Defaults, batching: str
) -> None:
    zoo.centred("m")
    loaded = load(zoo, defaults, examples={"x": [1.0, 2.0, 3.0, 4.0]}, batching=batching)
    # The probe has one row only, so values can't differ; what matters is that the example is taken.
    assert loaded.signature.inputs[0].dims == (-1, 4)


def test_one_example_row_serves_a_model_of_fixed_rows(zoo: Zoo, defaults: Defaults) -> None:
    zoo.identity("m", shape=(1, 4))
    assert not load(zoo, defaults, examples={"x": [1.0, 2.0, 3.0, 4.0]}).batching
