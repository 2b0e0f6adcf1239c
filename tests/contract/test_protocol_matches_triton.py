"""Our protocol definition against the descriptors inside `tritonclient`: the same names, numbers, types and labels."""

from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc.model_config_pb2
import tritonclient.grpc.service_pb2
from google.protobuf import descriptor_pb2

from headrace_protos.inference import grpc_service_pb2, model_config_pb2

# In the Open Inference Protocol's own file, which Triton's leaves out.
OURS_ONLY = {"inference.ModelMetadataResponse": {"properties"}}


def file_of(module: Any) -> descriptor_pb2.FileDescriptorProto:
    described = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(described)
    return described


def messages(file: descriptor_pb2.FileDescriptorProto) -> dict[str, descriptor_pb2.DescriptorProto]:
    def walk(prefix: str, found: Any) -> Iterator[tuple[str, descriptor_pb2.DescriptorProto]]:
        for message in found:
            name = f"{prefix}.{message.name}"
            yield name, message
            yield from walk(name, message.nested_type)

    return dict(walk(file.package, file.message_type))


def enums(file: descriptor_pb2.FileDescriptorProto) -> dict[str, list[tuple[str, int]]]:
    nested = [(name, enum) for name, message in messages(file).items() for enum in message.enum_type]
    top = [(file.package, enum) for enum in file.enum_type]
    return {f"{prefix}.{enum.name}": [(v.name, v.number) for v in enum.value] for prefix, enum in top + nested}


def fields(message: descriptor_pb2.DescriptorProto) -> dict[str, tuple[object, ...]]:
    def choice(field: descriptor_pb2.FieldDescriptorProto) -> str:
        return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""

    return {f.name: (f.number, f.type, f.type_name, f.label, choice(f)) for f in message.field}


PAIRS = [
    pytest.param(grpc_service_pb2, tritonclient.grpc.service_pb2, id="service"),
    pytest.param(model_config_pb2, tritonclient.grpc.model_config_pb2, id="model configuration"),
]


@pytest.mark.parametrize(("ours", "triton"), PAIRS)
def test_every_message_has_tritons_fields(ours: Any, triton: Any) -> None:
    left, right = messages(file_of(ours)), messages(file_of(triton))
    extra = {f"{name}.PropertiesEntry" for name in OURS_ONLY}
    assert left.keys() - extra == right.keys()
    for name, message in right.items():
        found = fields(left[name])
        for field in OURS_ONLY.get(name, ()):
            del found[field]
        assert found == fields(message), name


@pytest.mark.parametrize(("ours", "triton"), PAIRS)
def test_every_enum_has_tritons_values(ours: Any, triton: Any) -> None:
    assert enums(file_of(ours)) == enums(file_of(triton))


def test_every_call_has_tritons_form() -> None:
    def calls(module: Any) -> dict[str, tuple[object, ...]]:
        (service,) = file_of(module).service
        assert (module.DESCRIPTOR.package, service.name) == ("inference", "GRPCInferenceService")
        return {m.name: (m.input_type, m.client_streaming, m.output_type, m.server_streaming) for m in service.method}

    found = calls(grpc_service_pb2)
    assert len(found) == 20
    assert found == calls(tritonclient.grpc.service_pb2)


def test_bytes_of_either_side_are_read_by_the_other() -> None:
    ours = grpc_service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"\x00\x01"])
    ours.parameters["priority"].uint64_param = 3
    tensor = ours.inputs.add(name="x", datatype="INT8", shape=[2])
    tensor.contents.int_contents.append(-1)
    theirs = tritonclient.grpc.service_pb2.ModelInferRequest.FromString(ours.SerializeToString())
    assert theirs.parameters["priority"].uint64_param == 3
    assert list(theirs.inputs[0].contents.int_contents) == [-1]
    again = grpc_service_pb2.ModelInferRequest.FromString(theirs.SerializeToString())
    assert again == ours
