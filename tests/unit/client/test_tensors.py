from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata import TensorSpec
from headrace.tensors import TensorError, _bfloat16_bits, check_value, infer_array


def spec(datatype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name="x", datatype=datatype, shape=shape)


@pytest.mark.parametrize(
    ("value", "datatype", "part", "says"),
    [
        ([1, -1, 127, 200], "INT8", "contents", "200 is outside INT8 (-128 to 127)"),
        ([0, 255, 256], "UINT8", "contents", "256 is outside UINT8"),
        ([-1], "UINT64", "contents", "-1 is outside UINT64"),
        ([2**70], "INT64", "contents", "is outside INT64"),
        ([1.5], "INT64", "datatype", "expected INT64, got numbers with a fraction part"),
        ([1e39], "FP32", "contents", "1e+39 is too large for FP32"),
        ([70000], "FP16", "contents", "70000 is too large for FP16"),
        ([1, 0], "BOOL", "datatype", "expected BOOL, got numbers"),
        ([True], "INT64", "datatype", "expected INT64, got true and false"),
        (["a"], "INT64", "datatype", "expected INT64, got text"),
        ([1], "BYTES", "contents", "element 0 is a int, not str or bytes"),
        (np.zeros(1, np.int64), "BYTES", "datatype", "expected BYTES, got INT64"),
        (np.zeros(1, np.float64), "FP32", "datatype", "convert it with array.astype(numpy.float32)"),
        (np.zeros(1, np.float32), "BF16", "datatype", "array.astype(ml_dtypes.bfloat16)"),
        (np.zeros(1, np.uint8), "BOOL", "datatype", "expected BOOL, got UINT8"),
        (np.zeros(1, np.complex64), "FP32", "datatype", "got numpy's complex64"),
        ([[1], [2, 3]], "INT64", "shape", "not rectangular"),
        ([["a"], ["b", "c"]], "BYTES", "shape", "not rectangular"),
        (5, "INT64", "shape", "expected [-1], got []; for a single row, put it in a list"),
        ([[1]], "INT64", "shape", "expected [-1], got [1,1]"),
    ],
)
def test_what_does_not_fit_is_said_and_never_cast(value: Any, datatype: str, part: str, says: str) -> None:
    with pytest.raises(TensorError) as caught:
        check_value(value, spec=spec(datatype, -1))
    assert caught.value.part == part
    assert says in caught.value.description


@pytest.mark.parametrize(
    ("value", "datatype", "dtype"),
    [
        ([1, 2], "FP32", np.float32),
        ([1, 2], "UINT8", np.uint8),
        ([2**64 - 1, 0], "UINT64", np.uint64),
        ([True, False], "BOOL", np.bool_),
        ([float("nan"), float("inf")], "FP16", np.float16),
        ([1.0, 2.0], "BF16", ml_dtypes.bfloat16),
        ([], "INT64", np.int64),
    ],
)
def test_python_numbers_take_the_models_datatype(value: list[Any], datatype: str, dtype: Any) -> None:
    array = check_value(value, spec=spec(datatype, -1))
    assert array.dtype == dtype
    np.testing.assert_array_equal(array.astype(np.float64), np.array(value, np.float64))


def test_a_scalar_and_an_empty_tensor_are_tensors() -> None:
    assert check_value(3, spec=spec("INT64")).shape == ()
    assert check_value("a", spec=spec("BYTES")).shape == ()
    assert check_value(np.zeros((1, 0), np.float32), spec=spec("FP32", 1, -1)).shape == (1, 0)


def test_nested_strings_keep_their_shape_and_every_byte() -> None:
    array = check_value([["a", b"b\0"], ["é", b""]], spec=spec("BYTES", -1, 2))
    assert array.tolist() == [[b"a", b"b\0"], ["é".encode(), b""]]
    assert infer_array(["x\0"]).tolist() == [b"x\0"]


def test_a_datatype_that_this_client_does_not_know_is_left_to_the_server() -> None:
    assert check_value(np.zeros(1, np.float32), spec=spec("FP8", -1)).dtype == np.float32


@given(st.lists(st.floats(width=32), min_size=1))
def test_bfloat16_bits_are_those_of_ml_dtypes(values: list[float]) -> None:
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = array.astype(ml_dtypes.bfloat16)
    mine = _bfloat16_bits(array).view(ml_dtypes.bfloat16)
    both_nan = np.isnan(expected.astype(np.float32)) & np.isnan(array)
    np.testing.assert_array_equal(
        np.where(both_nan, 0, mine.view(np.uint16)), np.where(both_nan, 0, expected.view(np.uint16))
    )
