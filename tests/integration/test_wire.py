"""Tensors on the wire: both forms, every datatype, and each way to get them wrong (V01–V06)."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace_core import tensors
from headrace_core.datatypes import BY_NAME
from headrace_protos.inference import grpc_service_pb2 as pb
from tests.support.calls import raw_request, request, rows, typed_request
from tests.support.models import DATATYPES

if TYPE_CHECKING:
    from tests.support.calls import Door

pytestmark = pytest.mark.usefixtures("unharmed")

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, False, True],
    "UINT8": [0, 1, 200, 255],
    "UINT16": [0, 1, 2, 65_535],
    "UINT32": [0, 1, 2, 4_294_967_295],
    "UINT64": [0, 1, 2, 18_446_744_073_709_551_615],
    "INT8": [-128, -1, 0, 127],
    "INT16": [-32_768, -1, 0, 32_767],
    "INT32": [-2_147_483_648, -1, 0, 2_147_483_647],
    "INT64": [-9_223_372_036_854_775_808, -1, 0, 9_223_372_036_854_775_807],
    "FP32": [0.1, -math.inf, 1e-45, 3.5],
    "FP64": [0.1, -math.inf, 5e-324, 3.5],
}
FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


@pytest.mark.parametrize("datatype", VALUES)
def test_raw_and_typed_contents_mean_the_same(door: Door, datatype: str) -> None:
    values = np.array([VALUES[datatype]], BY_NAME[datatype].dtype)
    model = f"same_{datatype.lower()}"
    raw = door.infer(raw_request(model, datatype, [1, 4], values.tobytes()))
    assert list(raw.raw_output_contents) == [values.tobytes()]
    assert (raw.outputs[0].datatype, list(raw.outputs[0].shape)) == (datatype, [1, 4])
    typed = door.infer(typed_request(model, datatype, [1, 4], **{FIELDS[datatype]: VALUES[datatype]}))
    assert not typed.raw_output_contents
    assert tensors.outputs_from_response(typed)["y"].tobytes() == values.tobytes()


def test_raw_and_typed_contents_of_one_input_are_refused(door: Door) -> None:
    message = raw_request("same_fp32", "FP32", [1, 4], rows(5.0).tobytes())
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    refused = door.refusal(message)
    assert refused.code == "INVALID_ARGUMENT"
    assert refused.fields == ("inputs[x].contents",)
    assert "raw" in refused.message


@pytest.mark.parametrize("raw_first", [True, False])
def test_one_raw_and_one_typed_input_are_refused(door: Door, raw_first: bool) -> None:
    message = pb.ModelInferRequest(model_name="add_two", raw_input_contents=[rows(1.0).tobytes()])
    for name in ("a", "b"):
        message.inputs.add(name=name, datatype="FP32", shape=[1, 4])
    typed = message.inputs[1 if raw_first else 0]
    typed.contents.fp32_contents.extend([1, 2, 3, 4])
    refused = door.refusal(message)
    assert refused.code == "INVALID_ARGUMENT"
    assert "raw" in refused.message
    assert typed.name in refused.message or any(typed.name in field for field in refused.fields)


@pytest.mark.parametrize(
    "shape", [[-1, 4], [2, -4], [-1, -4], [1, -4], [2**62, 4], [2**63 - 1, 2**63 - 1], [2**33, 2**31]]
)
def test_a_dimension_that_cannot_be_is_refused(door: Door, shape: list[int]) -> None:
    refused = door.refusal(raw_request("same_int8", "INT8", shape, bytes(8)))
    assert refused.code == "INVALID_ARGUMENT"
    assert refused.fields[:1] == ("inputs[x].shape",)


def test_a_row_of_no_elements_comes_back_as_one(door: Door) -> None:
    empty = door.infer(raw_request("any_width", "FP32", [1, 0], b""))
    assert list(empty.outputs[0].shape) == [1, 0]
    assert list(empty.raw_output_contents) == [b""]


def test_empty_rows_are_never_merged_with_others(door: Door) -> None:
    widths = [0, 5, 7, 0, 5]
    answers = door.together(
        raw_request("any_width", "FP32", [1, width], np.full(width, width, np.float32).tobytes()) for width in widths
    )
    for width, answer in zip(widths, answers, strict=True):
        assert isinstance(answer, pb.ModelInferResponse), answer
        assert tensors.outputs_from_response(answer)["y"].tolist() == [[width] * width]


def test_a_request_of_no_rows_is_refused(door: Door) -> None:
    refused = door.refusal(raw_request("add", "FP32", [0, 4], b""))
    assert refused.code == "INVALID_ARGUMENT"
    assert "1" in refused.message
    assert refused.fields == ("inputs[x].shape",)


# V04

TEXTS = [b"ab\0cd\0", b"", "🦆".encode(), b"\0", bytes(range(128)) * 8192]


def _framed(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in elements)


@pytest.mark.parametrize(("model", "shape"), [("same_bytes", [5]), ("same_bytes_columns", [5, 1])])
def test_text_comes_back_byte_for_byte(door: Door, model: str, shape: list[int]) -> None:
    raw = door.infer(raw_request(model, "BYTES", shape, _framed(TEXTS)))
    assert list(raw.raw_output_contents) == [_framed(TEXTS)]
    typed = door.infer(typed_request(model, "BYTES", shape, bytes_contents=TEXTS))
    assert list(typed.outputs[0].contents.bytes_contents) == TEXTS
    assert list(typed.outputs[0].shape) == shape


@pytest.mark.parametrize("bad", [b"\xff\xfe\x80", b"\xed\xa0\x80", b"caf\xe9"])
def test_text_that_is_not_utf8_is_refused_by_element(door: Door, bad: bytes) -> None:
    elements = [b"fine", b"", bad, b"fine", b"fine"]
    before = door.statistics("same_bytes").inference_count
    for message in (
        raw_request("same_bytes", "BYTES", [5], _framed(elements)),
        typed_request("same_bytes", "BYTES", [5], bytes_contents=elements),
    ):
        refused = door.refusal(message)
        assert refused.code == "INVALID_ARGUMENT"
        assert "2" in refused.message
        assert "UTF-8" in refused.message
        assert refused.fields == ("inputs[x].contents",)
    assert door.statistics("same_bytes").inference_count == before, "refused before the queue"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x05\x00\x00\x00ab", id="an element longer than what is left"),
        pytest.param(b"\x05\x00", id="a length cut in two"),
        pytest.param(struct.pack("<I", 0xFFFFFFFF) + b"ab", id="an absurd length"),
        pytest.param(_framed([b"a"]) + b"x", id="bytes left over"),
        pytest.param(_framed([b"a", b"b"]), id="an element too many"),
        pytest.param(b"", id="an element too few"),
    ],
)
def test_text_framed_wrongly_is_refused(door: Door, raw: bytes) -> None:
    refused = door.refusal(raw_request("same_bytes", "BYTES", [1], raw))
    assert refused.code == "INVALID_ARGUMENT"
    assert "x" in refused.message


# V05

WRONG = {
    "another datatype": raw_request("same_int64", "UINT8", [1, 4], bytes(4)),
    "another width": raw_request("same_int64", "INT32", [1, 4], bytes(16)),
    "another field": typed_request("same_int64", "INT64", [1, 4], int_contents=[1, 2, 3, 4]),
    "too large for int8": typed_request("same_int8", "INT8", [1, 4], int_contents=[1, -1, 127, 200]),
    "too small for int8": typed_request("same_int8", "INT8", [1, 4], int_contents=[1, -1, -129, 0]),
    "too large for uint8": typed_request("same_uint8", "UINT8", [1, 4], uint_contents=[0, 255, 256, 0]),
    "too large for uint16": typed_request("same_uint16", "UINT16", [1, 4], uint_contents=[0, 255, 65536, 0]),
    "too large for int16": typed_request("same_int16", "INT16", [1, 4], int_contents=[0, 32768, 0, 0]),
    "packed int8": typed_request("same_int8", "INT8", [1, 4], int_contents=[0x01020304]),
    "a bool of two": raw_request("same_bool", "BOOL", [1, 4], b"\x00\x01\x02\x00"),
    "too few bytes": raw_request("same_fp32", "FP32", [1, 4], bytes(15)),
    "too many bytes": raw_request("same_fp32", "FP32", [1, 4], bytes(17)),
    "no such datatype": raw_request("same_fp32", "FP33", [1, 4], bytes(16)),
    "lower case": raw_request("same_fp32", "fp32", [1, 4], bytes(16)),
    "half precision typed": typed_request("same_fp16", "FP16", [1, 4], fp32_contents=[1, 2, 3, 4]),
    "brain floats typed": typed_request("same_bf16", "BF16", [1, 4], fp32_contents=[1, 2, 3, 4]),
    "nothing at all": typed_request("same_fp32", "FP32", [1, 4]),
    "fixed dimension": raw_request("same_fp32", "FP32", [1, 5], bytes(20)),
    "rank too low": raw_request("same_fp32", "FP32", [4], bytes(16)),
    "rank too high": raw_request("same_fp32", "FP32", [1, 1, 4], bytes(16)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_is_not_what_the_model_takes_is_refused_by_name(door: Door, wrong: str) -> None:
    refused = door.refusal(WRONG[wrong])
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_TENSOR")
    assert "x" in refused.message
    assert refused.fields
    assert all(field.startswith("inputs[x].") for field in refused.fields)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("another datatype", ["INT64", "UINT8"]),
        ("another width", ["INT64", "INT32"]),
        ("another field", ["int64_contents", "int_contents"]),
        ("too large for int8", ["200", "3"]),
        ("too large for uint8", ["256", "2"]),
        ("half precision typed", ["FP16", "raw"]),
        ("too few bytes", ["16", "15"]),
        ("fixed dimension", ["4", "5"]),
    ],
)
def test_a_refusal_says_what_was_expected_and_what_came(worker_door: Door, wrong: str, words: list[str]) -> None:
    refused = worker_door.refusal(WRONG[wrong])
    for word in words:
        assert word in refused.message


# V06


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_sixteen_bit_floats_come_back_bit_for_bit(door: Door, datatype: str) -> None:
    bits = {
        "FP16": [0x7E01, 0xFE55, 0xFC00, 0x8000, 0x0001, 0x7BFF, 0x3C00, 0x0000],
        "BF16": [0x7FC1, 0xFFD5, 0xFF80, 0x8000, 0x0001, 0x7F7F, 0x3F80, 0x0000],
    }[datatype]
    raw = np.array(bits, "<u2").tobytes()
    answer = door.infer(raw_request(f"same_{datatype.lower()}", datatype, [2, 4], raw))
    assert answer.outputs[0].datatype == datatype
    assert list(answer.raw_output_contents) == [raw]
    assert not answer.outputs[0].HasField("contents")


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_a_nan_keeps_its_payload(door: Door, datatype: str) -> None:
    bits = {"FP32": np.array([[0x7FC00123, 0xFF800000, 0x80000000, 1]], "<u4"),
            "FP64": np.array([[0x7FF8000000000123, 0xFFF0000000000000, 1 << 63, 1]], "<u8")}[datatype]  # fmt: skip
    answer = door.infer(raw_request(f"same_{datatype.lower()}", datatype, [1, 4], bits.tobytes()))
    assert list(answer.raw_output_contents) == [bits.tobytes()]


# What is around the tensors


def _twice() -> pb.ModelInferRequest:
    message = request("add", x=rows(1.0))
    message.inputs.append(message.inputs[0])
    message.raw_input_contents.append(message.raw_input_contents[0])
    return message


@pytest.mark.parametrize(
    ("message", "code", "reason", "word"),
    [
        pytest.param(request("nobody", x=rows(1.0)), "NOT_FOUND", "MODEL_NOT_FOUND", "nobody", id="unknown model"),
        pytest.param(request("", x=rows(1.0)), "INVALID_ARGUMENT", "INVALID_REQUEST", "model_name", id="no model"),
        pytest.param(
            request("add", version="9", x=rows(1.0)), "NOT_FOUND", "VERSION_NOT_FOUND", "9", id="unknown version"
        ),
        pytest.param(request("add", z=rows(1.0)), "INVALID_ARGUMENT", "UNKNOWN_TENSOR", "z", id="unknown input"),
        pytest.param(request("add_two", a=rows(1.0)), "INVALID_ARGUMENT", "INVALID_TENSOR", "b", id="input left out"),
        pytest.param(request("add"), "INVALID_ARGUMENT", "INVALID_TENSOR", "x", id="no input"),
        pytest.param(_twice(), "INVALID_ARGUMENT", "INVALID_TENSOR", "x", id="an input twice"),
        pytest.param(
            request("add", outputs=["nope"], x=rows(1.0)), "INVALID_ARGUMENT", "UNKNOWN_TENSOR", "nope",
            id="unknown output",
        ),
    ],
)  # fmt: skip
def test_a_request_that_names_the_wrong_things_is_refused(
    door: Door, message: pb.ModelInferRequest, code: str, reason: str, word: str
) -> None:
    refused = door.refusal(message)
    assert (refused.code, refused.reason) == (code, reason)
    assert word in refused.message


@pytest.mark.parametrize("name", ["🦆" * 300, "x" * 100_000, "../../etc/passwd", "new\nline", 'quo"te'])
def test_a_name_of_any_kind_is_only_unknown(door: Door, name: str) -> None:
    refused = door.refusal(request(name, x=rows(1.0)))
    assert (refused.code, refused.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert len(refused.message.encode()) <= 1024


def test_the_answer_names_model_version_and_id(door: Door) -> None:
    answer = door.infer(request("add", named="one request's own ✓", x=rows(1.0)))
    assert (answer.model_name, answer.model_version, answer.id) == ("add", "1", "one request's own ✓")


def test_a_scalar_is_served(door: Door) -> None:
    values = {"x": rows(2.0, 3.0), "s": np.array(10, np.float32)}
    assert door.arrays(request("scalar", **values))["y"].tolist() == rows(20.0, 30.0).tolist()


def test_every_datatype_is_told_in_metadata(door: Door) -> None:
    for datatype in DATATYPES:
        told = door.stub.ModelMetadata(pb.ModelMetadataRequest(name=f"same_{datatype.lower()}"), timeout=30)
        assert [one.datatype for one in (*told.inputs, *told.outputs)] == [datatype, datatype]
