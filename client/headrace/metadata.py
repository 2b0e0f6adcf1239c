"""What a server says about itself and its models, as frozen values."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from headrace_core.cards import CARD_PROPERTY, Card
from headrace_protos.inference import grpc_service_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output of a model."""

    name: str
    datatype: str
    """The protocol's name: `FP32`, `INT64`, `BYTES`, …"""
    shape: tuple[int, ...]
    """Sizes of the dimensions; -1 where any size will do."""

    def __str__(self) -> str:
        """As in `input_ids INT64 [-1,-1]`."""
        return f"{self.name} {self.datatype} {format_shape(self.shape)}"

    @property
    def elements(self) -> int | None:
        """How many elements it has, or None where a dimension is dynamic."""
        return None if any(size < 0 for size in self.shape) else math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """A model's versions and signature."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    """Free text from the server; `optional_inputs` (comma-separated) and `headrace.card` mean something to clients."""

    @property
    def optional_inputs(self) -> frozenset[str]:
        """Inputs that may be left out."""
        listed = self.properties.get("optional_inputs", "")
        return frozenset(name.strip() for name in listed.split(",") if name.strip())

    @property
    def card(self) -> Card | None:
        """The model's card, or None where it has none that this client understands."""
        text = self.properties.get(CARD_PROPERTY)
        if not text:
            return None
        try:
            return Card.model_validate_json(text)
        except ValidationError:
            # A newer server may know fields that we don't. A card is a convenience: without it tensors still work.
            return None

    @classmethod
    def from_proto(cls, message: pb.ModelMetadataResponse) -> "ModelMetadata":
        """The protocol's message as a value."""
        return cls(
            name=message.name,
            versions=tuple(message.versions),
            platform=message.platform,
            inputs=_specs(message.inputs),
            outputs=_specs(message.outputs),
            properties=dict(message.properties),
        )


@dataclass(frozen=True, kw_only=True)
class ServerMetadata:
    """The server's name, version, and the protocol extensions that it has."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """One line of the repository's index."""

    name: str
    version: str
    state: str
    """`READY`, `LOADING`, `UNLOADING`, `UNAVAILABLE` or `UNKNOWN`."""
    reason: str
    """Why it isn't ready; empty where it is."""

    @property
    def ready(self) -> bool:
        """Whether requests for it are answered."""
        return self.state == "READY"


def format_shape(shape: Iterable[int]) -> str:
    """As in `[1,3,224,224]`, the way the protocol's tools write shapes."""
    return "[" + ",".join(str(size) for size in shape) + "]"


def _specs(tensors: Iterable[pb.ModelMetadataResponse.TensorMetadata]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=t.name, datatype=t.datatype, shape=tuple(t.shape)) for t in tensors)
