"""Bytes that are no request, or nearly one: refused as such at each door, and the connection goes on."""

from __future__ import annotations

import gzip
import random
from typing import TYPE_CHECKING

import grpc
import pytest

from headrace_protos.inference import grpc_service_pb2 as pb
from tests.support.calls import PATIENCE, Door, Refusal, raw_request, request, rows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("unharmed")

INFER = "/inference.GRPCInferenceService/ModelInfer"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"
VALID = request("add", named="an id", outputs=["y"], x=rows(1.0)).SerializeToString()


def send(door: Door, message: bytes, *, path: str = INFER) -> str:
    """The code that these bytes get."""
    try:
        door.channel.unary_unary(path)(message, timeout=PATIENCE)
    except grpc.RpcError as error:
        return Refusal.of(error).code
    return "OK"


@pytest.fixture
def same_connection(door: Door) -> Callable[[], None]:
    """Checks that the channel still serves, by an answer."""

    def check() -> None:
        assert door.arrays(request("add", x=rows(1.0)))["y"].tolist() == rows(2.0).tolist()

    return check


def test_random_bytes_are_refused(door: Door, same_connection: Callable[[], None]) -> None:
    luck = random.Random(1)
    codes = {send(door, luck.randbytes(luck.randint(1, 400))) for _ in range(300)}
    assert codes <= {"INVALID_ARGUMENT", "NOT_FOUND"}
    same_connection()


def test_a_request_cut_anywhere_is_refused(door: Door, same_connection: Callable[[], None]) -> None:
    # Where a cut leaves whole fields, what is missing is told of.
    assert {send(door, VALID[:at]) for at in range(len(VALID))} <= {"INVALID_ARGUMENT", "NOT_FOUND"}
    same_connection()


def test_a_request_with_a_byte_changed_is_answered_or_refused(door: Door, same_connection: Callable[[], None]) -> None:
    luck = random.Random(2)
    codes = set()
    for at in range(len(VALID)):
        changed = bytearray(VALID)
        changed[at] ^= 1 << luck.randrange(8)
        codes.add(send(door, bytes(changed)))
    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert "OK" in codes, "a changed value is a value"
    same_connection()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0fadd", id="a name of four gigabytes"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a length of 64 bits"),
        pytest.param(b"\x0a\x80" + b"\x80" * 30, id="a length without an end"),
        pytest.param(b"\x08\x01", id="a number where the name belongs"),
        pytest.param(b"\x0a\x02\xff\xfe", id="a name that is not UTF-8"),
        pytest.param(b"\x0a\x03add\x0b\x0b\x0b\x0c", id="groups that do not close"),
        pytest.param(b"\x00", id="field nought"),
        pytest.param(b"\x0f", id="a wire type that does not exist"),
    ],
)
def test_what_no_encoder_makes_is_refused(door: Door, message: bytes) -> None:
    assert send(door, message) == "INVALID_ARGUMENT"


def test_unknown_fields_are_passed_over(door: Door) -> None:
    unknown = b"\xfa\x3f\x05hello" + b"\xf0\x3f\x2a"  # field 1023: bytes; field 1022: a number
    assert send(door, unknown + VALID + unknown) == "OK"


def test_bytes_that_are_no_request_are_refused_by_the_slow_half_too(door: Door) -> None:
    assert send(door, b"\x0a\xff\xff\xff\xff\x0fadd", path=METADATA) in {"INTERNAL", "INVALID_ARGUMENT"}
    assert send(door, pb.ModelMetadataRequest(name="add").SerializeToString(), path=METADATA) == "OK"


def test_gzip_is_understood(door: Door) -> None:
    call = door.stub.ModelInfer(request("add", x=rows(*[1.0] * 8)), timeout=PATIENCE, compression=grpc.Compression.Gzip)
    assert call.raw_output_contents[0] == rows(*[2.0] * 8).tobytes()


def test_a_small_message_that_inflates_beyond_the_limit_is_refused(door: Door) -> None:
    bomb = raw_request("any_width", "FP32", [1, 20_000_000], bytes(80_000_000))
    assert len(gzip.compress(bomb.SerializeToString())) < 200_000
    with pytest.raises(grpc.RpcError) as error:
        door.stub.ModelInfer(bomb, timeout=PATIENCE, compression=grpc.Compression.Gzip)
    refused = Refusal.of(error.value)
    assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")


def test_other_compression_is_refused_with_what_is_understood(door: Door) -> None:
    with pytest.raises(grpc.RpcError) as error:
        door.stub.ModelInfer(request("add", x=rows(*[1.0] * 8)), timeout=PATIENCE, compression=grpc.Compression.Deflate)
    refused = Refusal.of(error.value)
    assert refused.code == "UNIMPLEMENTED"
    assert "gzip" in refused.message
