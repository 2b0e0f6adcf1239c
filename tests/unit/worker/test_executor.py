"""From a batch to a session and back, for every datatype; and what a failed run tells whom."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from headrace_batcher import InvalidInputError
from headrace_core.datatypes import ALL
from headrace_worker import signature
from headrace_worker.executor import Executor, InferenceFailedError
from headrace_worker.session import Options, Session, safe_message

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.worker.conftest import Zoo


def executor(path: Path, *, shrink: bool = False) -> Executor:
    session = Session(path, options=Options(device="cpu"))
    found = signature.read(session.inputs, session.outputs)
    return Executor(session, model="m/1", signature=found, shrink_arena=shrink)


def test_strings_keep_nul_empty_and_emoji(zoo: Zoo, batch_of: Any) -> None:
    values = ["ab\0cd\0", "", "🙂", "x" * 100_000]
    run = executor(zoo.identity("m", TensorProto.STRING, ("N",)))
    (output,) = run(batch_of(("y",), 4, x=("BYTES", values)))
    assert output == ((4,), values)


@pytest.mark.parametrize("kind", [one for one in ALL if one.name not in {"BYTES", "BF16"}], ids=lambda one: one.name)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1, 0)])
def test_numbers_come_back_as_they_went(zoo: Zoo, batch_of: Any, kind: Any, shape: tuple[int, int]) -> None:
    array = np.random.default_rng(3).integers(0, 2, shape).astype(kind.dtype)
    run = executor(zoo.identity("m", kind.onnx_number, ("N", "M")))
    (output,) = run(batch_of(("y",), shape[0], x=(kind.name, array)))
    assert output.dtype == kind.dtype
    np.testing.assert_array_equal(output, array)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_bfloat16_keeps_its_bits_both_ways(zoo: Zoo, batch_of: Any, shape: tuple[int, int]) -> None:
    array = np.linspace(-3, 3, num=shape[0] * shape[1]).astype(ml_dtypes.bfloat16).reshape(shape)
    run = executor(zoo.identity("m", TensorProto.BFLOAT16, ("N", "M")))
    (output,) = run(batch_of(("y",), shape[0], x=("BF16", array.view(np.uint16))))
    assert output.dtype == np.uint16
    np.testing.assert_array_equal(output, array.view(np.uint16))


def test_a_scalar_stays_a_scalar(zoo: Zoo, batch_of: Any) -> None:
    run = executor(zoo.identity("m", TensorProto.INT64, ()))
    (output,) = run(batch_of(("y",), 1, x=("INT64", np.array(7, np.int64))))
    assert output.shape == ()
    assert output == 7


def test_only_the_wanted_outputs_are_given_in_their_order(zoo: Zoo, batch_of: Any) -> None:
    path = zoo.save(
        "m",
        [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])],
        [("x", 1, ("N", 1))],
        [("a", 1, ("N", 1)), ("b", 1, ("N", 1))],
    )
    x = np.array([[-2.0]], np.float32)
    run = executor(path)
    assert [one.item() for one in run(batch_of(("b", "a"), 1, x=("FP32", x)))] == [2.0, 2.0]
    assert len(run(batch_of(("b",), 1, x=("FP32", x)))) == 1


def test_a_bad_index_is_the_callers_fault_and_named_without_a_path(zoo: Zoo, batch_of: Any) -> None:
    run = executor(zoo.gather("m"))
    with pytest.raises(InvalidInputError, match="idx=99") as refused:
        run(batch_of(("y",), 1, ids=("INT64", np.array([[99]], np.int64))))
    assert "/" not in str(refused.value)
    (output,) = run(batch_of(("y",), 1, ids=("INT64", np.array([[1]], np.int64))))
    assert output.tolist() == [[[3.0, 4.0, 5.0]]]


def test_a_failed_run_is_logged_once_and_told_without_detail(
    zoo: Zoo, batch_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = zoo.save(
        "m",
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [("x", 1, ("N", 4))],
        [("y", 1, ("M", "K"))],
        {"s": np.array([1, 4], np.int64)},
    )
    run = executor(path, shrink=True)
    batch = batch_of(("y",), 2, x=("FP32", np.ones((2, 4), np.float32)))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(InferenceFailedError) as failed:
                run(batch)
    assert str(failed.value) == "model m/1 failed"
    assert [one.message for one in caplog.records] == ["inference failed"]
    assert "reshape" in caplog.records[0].detail.lower()  # type: ignore[attr-defined]


def test_messages_for_callers_lose_paths_and_source_positions() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. Name:'r' Status "
        "Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:91 "
        "onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, bool) size was false. "
        "Load model from /home/me/models/m/1/model.onnx failed"
    )
    safe = safe_message(text)
    assert safe.startswith("Reshape node 'r': ")
    assert "/" not in safe
    assert "onnxruntime_src" not in safe
