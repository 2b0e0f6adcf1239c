"""What of the CUDA path needs no device: staging buffers, and binding them on the CPU provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace_batcher import InvalidInputError
from headrace_worker import signature
from headrace_worker.cuda import CudaExecutor, PinnedBuffer
from headrace_worker.session import Options, Session

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.worker.conftest import Zoo


def bound(path: Path) -> CudaExecutor:
    session = Session(path, options=Options(device="cpu"))
    found = signature.read(session.inputs, session.outputs)
    axes = {one.name: 0 for one in found.inputs}
    outputs: dict[str, int | None] = {one.name: 0 for one in found.outputs}
    return CudaExecutor(session, model="m/1", signature=found.with_axes(axes, outputs), shrink_arena=False)


def test_a_staging_buffer_grows_and_is_reused() -> None:
    buffer = PinnedBuffer(None)
    small = buffer.array((3,), np.dtype(np.float32))
    assert small.shape == (3,)
    large = buffer.array((100, 4), np.dtype(np.float32))
    again = buffer.array((100, 4), np.dtype(np.float32))
    assert np.shares_memory(large, again)
    assert buffer.array((0, 4), np.dtype(np.float32)).size == 0
    buffer.close()


def test_bound_runs_give_what_plain_ones_do(zoo: Zoo, batch_of: Any) -> None:
    run = bound(zoo.add("m"))
    for rows in (1, 3, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
        (output,) = run(batch_of(("y",), rows, x=("FP32", x)))
        np.testing.assert_array_equal(output, x + 1)


def test_bound_bfloat16_keeps_its_bits(zoo: Zoo, batch_of: Any) -> None:
    run = bound(zoo.identity("m", 16, ("N", 4)))
    bits = np.arange(8, dtype=np.uint16).reshape(2, 4)
    (output,) = run(batch_of(("y",), 2, x=("BF16", bits)))
    np.testing.assert_array_equal(output, bits)


def test_outputs_of_unknown_shape_are_left_to_the_runtime(zoo: Zoo, batch_of: Any) -> None:
    run = bound(zoo.gather("m"))
    (output,) = run(batch_of(("y",), 1, ids=("INT64", np.array([[0, 1]], np.int64))))
    assert output.shape == (1, 2, 3)


def test_a_bad_index_is_the_callers_fault_here_too(zoo: Zoo, batch_of: Any) -> None:
    run = bound(zoo.gather("m"))
    with pytest.raises(InvalidInputError, match="idx=99"):
        run(batch_of(("y",), 1, ids=("INT64", np.array([[99]], np.int64))))
