"""numpy to the protocol's tensors and back, in both forms, and what contradicts itself."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from headrace_core import tensors
from headrace_core.datatypes import ALL, BY_NAME, of_array
from headrace_core.errors import InvalidTensor
from headrace_protos.inference import grpc_service_pb2 as pb

NUMBERS = [one for one in ALL if one.name not in {"BYTES", "BF16"}]


@given(data=st.data())
@pytest.mark.parametrize("kind", NUMBERS, ids=lambda one: one.name)
def test_raw_contents_come_back_bit_for_bit(kind: Any, data: st.DataObject) -> None:
    shape = data.draw(nps.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4))
    array = data.draw(nps.arrays(kind.dtype, shape))
    described, raw = tensors.input_from_array("x", array=array)
    assert described.datatype == kind.name
    came = tensors.decode(raw, name="x", datatype=kind.name, shape=list(described.shape))
    assert came.tobytes() == array.tobytes()
    assert came.shape == array.shape


@given(elements=st.lists(st.binary()))
def test_binary_strings_keep_every_byte(elements: list[bytes]) -> None:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    raw = tensors.encode(array, datatype="BYTES")
    assert tensors.decode(raw, name="s", datatype="BYTES", shape=[len(elements)]).tolist() == elements


def test_text_and_foreign_byte_orders_are_converted() -> None:
    assert tensors.encode(np.array(["é"]), datatype="BYTES") == b"\x02\x00\x00\x00\xc3\xa9"
    assert tensors.encode(np.array([1], ">i4"), datatype="INT32") == b"\x01\x00\x00\x00"
    assert tensors.encode(np.arange(6, dtype=np.int8).reshape(2, 3).T, datatype="INT8") == bytes([0, 3, 1, 4, 2, 5])


def test_bfloat16_travels_as_itself_or_as_bits() -> None:
    array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    described, raw = tensors.input_from_array("x", array=array)
    assert described.datatype == "BF16"
    assert tensors.encode(array.view(np.uint16), datatype="BF16") == raw
    assert tensors.decode(raw, name="x", datatype="BF16", shape=[2]).tolist() == array.tolist()


@pytest.mark.parametrize("array", [np.zeros(1, np.complex64), np.zeros(1, "M8[s]")])
def test_what_no_datatype_carries_is_a_type_error(array: Any) -> None:
    with pytest.raises(TypeError, match="no Open Inference datatype"):
        of_array(array)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("INT64", "int_contents", [1]),
        ("INT8", "int_contents", [200]),
        ("UINT8", "uint_contents", [256]),
        ("FP16", "fp32_contents", [1.0]),
        ("FP32", "fp32_contents", [1.0, 2.0]),
        ("NOPE", "fp32_contents", [1.0]),
    ],
)
def test_typed_contents_that_do_not_fit_are_refused(datatype: str, field: str, values: list[Any]) -> None:
    contents = pb.InferTensorContents(**{field: values})
    with pytest.raises(InvalidTensor, match="'x'"):
        tensors.decode_typed(contents, name="x", datatype=datatype, shape=[1])


@pytest.mark.parametrize(
    ("raw", "datatype", "shape"),
    [
        (b"\x00" * 7, "FP32", [2]),
        (b"\x05\x00\x00\x00ab", "BYTES", [1]),
        (b"\x01\x00", "BYTES", [1]),
        (b"", "BYTES", [1]),
    ],
)
def test_raw_contents_that_do_not_add_up_are_refused(raw: bytes, datatype: str, shape: list[int]) -> None:
    with pytest.raises(InvalidTensor):
        tensors.decode(raw, name="x", datatype=datatype, shape=shape)


def test_a_reply_is_read_in_either_form() -> None:
    raw = pb.ModelInferResponse(raw_output_contents=[b"\x01\x00"])
    raw.outputs.add(name="y", datatype="INT16", shape=[1])
    assert tensors.outputs_from_response(raw)["y"].tolist() == [1]
    typed = pb.ModelInferResponse()
    typed.outputs.add(name="y", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1, 2])
    assert tensors.outputs_from_response(typed)["y"].tolist() == [1.0, 2.0]
    typed.raw_output_contents.extend([b"", b""])
    with pytest.raises(InvalidTensor):
        tensors.outputs_from_response(typed)


def test_names_in_all_spellings_are_unique() -> None:
    assert len(BY_NAME) == len({one.onnx for one in ALL}) == len({one.triton for one in ALL}) == 14
