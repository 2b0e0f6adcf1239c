"""`model.yaml`: what an operator may decide about a model. Every key has a default; most models need no file.

Unknown keys are refused with the nearest right name. `docs/model-config.md` describes each key.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from headrace_core.cards import Card
from headrace_core.settings import Duration, nearest

FILE_NAME: Final = "model.yaml"


class ConfigProblem(ValueError):
    """A model's configuration is wrong. The text has one sentence for each thing that is."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _on_off(value: Any) -> Any:
    # YAML reads a bare on and off as true and false.
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


OnOff = Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_off)]


class QueueConfig(_Part):
    """How requests wait."""

    max_queue_delay: Duration = timedelta(0)
    """Longest that the oldest request waits for company while an instance is idle. Zero: never."""
    max_queue_rows: int = Field(default=4096, ge=1)
    """Rows beyond this are refused with `QUEUE_FULL`."""
    max_queue_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    """Tensor bytes beyond this are refused with `QUEUE_FULL`."""
    max_queue_requests: int = Field(default=4096, ge=1)
    """Requests beyond this are refused with `QUEUE_FULL`."""
    priority_levels: int = Field(default=3, ge=1, le=64)
    """Priorities go from 1, the most urgent, to this."""
    default_priority: int = Field(default=2, ge=1)
    """The priority of a request that names none."""
    default_timeout: Duration = timedelta(0)
    """How long a request without a deadline may wait. Zero: as long as it takes."""
    learn_costs: bool = True
    """Whether batches stop growing where rows per second stop rising."""

    @model_validator(mode="after")
    def _default_is_a_level(self) -> Self:
        if self.default_priority > self.priority_levels:
            raise ValueError(
                f"default_priority {self.default_priority} is beyond priority_levels {self.priority_levels}"
            )
        return self


class Provider(_Part):
    """An ONNX Runtime execution provider and its options."""

    name: str
    options: dict[str, str] = Field(default_factory=dict)

    @field_validator("options", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return {key: str(one) for key, one in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class VersionPolicy(_Part):
    """Which of the versions in the folder are served. One of the three."""

    latest: int = Field(default=1, ge=1)
    """This many, counted from the highest number."""
    all: bool = False
    specific: tuple[Annotated[int, Field(ge=1)], ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if value == "latest":
            return {}
        if value == "all":
            return {"all": True}
        if isinstance(value, list):
            return {"specific": value}
        return value

    def choose(self, versions: list[str]) -> list[str]:
        """The versions to serve, lowest first."""
        ordered = sorted(versions, key=int)
        if self.all:
            return ordered
        if self.specific:
            return [one for one in ordered if int(one) in self.specific]
        return ordered[-self.latest :]


class ModelConfig(_Part):
    """Everything that `model.yaml` can say."""

    versions: VersionPolicy = VersionPolicy()
    max_batch_rows: int = Field(default=128, ge=1, le=65_536)
    """Most rows of one batch, and of one request to a model that batches."""
    batching: OnOff = "auto"
    """Whether requests run together. `auto`: if the model's signature and a probe at load say that they can and
    that it pays."""
    batch_axes: dict[str, int | None] = Field(default_factory=dict)
    """The axis that counts rows, by tensor; null for a tensor that has none. Left out: guessed, then probed."""
    instances: int = Field(default=0, ge=0, le=1024)
    """How many batches run at once. 0: as the worker's setting says."""
    intra_op_threads: int = Field(default=1, ge=1, le=1024)
    """Threads within one run. More help a single stream's latency and cost throughput."""
    inter_op_threads: int = Field(default=1, ge=1, le=1024)
    """Threads over independent parts of the graph. Above 1 the graph runs in parallel mode."""
    device: str | None = Field(default=None, pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto`, `cpu`, `cuda` or `cuda:N`. Left out: the worker's setting. What was asked for and isn't there is an error."""
    providers: tuple[Provider, ...] = ()
    """ONNX Runtime execution providers in order, instead of what `device` stands for."""
    arena: Literal["auto", "keep", "shrink", "off"] = "auto"
    """What happens to memory after a run: kept, given back, or never pooled. `auto`: given back if shapes vary."""
    optimisation: Literal["auto", "all", "extended", "basic", "none"] = "auto"
    """Graph optimisation. `auto`: all, or basic where a model runs only with that (some rewrites have bugs)."""
    disabled_optimizers: tuple[str, ...] = ()
    """Names of graph optimisers to leave out."""
    session_options: dict[str, str] = Field(default_factory=dict)
    """ONNX Runtime session configuration entries, passed on as they are."""
    queue: QueueConfig = QueueConfig()
    warmup: bool = True
    """Whether the model is run before it is ready."""
    examples: dict[str, Any] = Field(default_factory=dict)
    """Input values for warm-up and probe: one row without its batch axis, as a number or nested list. Inputs left out
    are made up."""
    card: Card | None = None
    """What a person needs to know to use the model at a prompt."""

    @field_validator("session_options", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return {key: str(one) for key, one in value.items()} if isinstance(value, dict) else value


_PARTS: Final[dict[str, type[BaseModel]]] = {"queue": QueueConfig, "versions": VersionPolicy, "providers": Provider}


def read(path: Path) -> ModelConfig:
    """The configuration in a `model.yaml`.

    Raises:
        ConfigProblem: it isn't YAML, or says something that can't be.
    """
    return parse(read_document(path), name=path.name)


def read_document(path: Path) -> dict[str, Any]:
    """The keys and values of a `model.yaml`, not yet checked. Raises `ConfigProblem`."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigProblem(f"{path.name} can't be read: {error.__class__.__name__}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigProblem(f"{path.name}{where} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigProblem(f"{path.name} must hold keys and values")
    return document


def parse(document: dict[str, Any], *, name: str) -> ModelConfig:
    """The configuration in a parsed document. Raises `ConfigProblem`."""
    try:
        return ModelConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigProblem("; ".join(f"{name}: {one}" for one in _sentences(error))) from error


def _sentences(error: ValidationError) -> list[str]:
    sentences: list[str] = []
    for one in error.errors(include_url=False):
        place = ".".join(str(part) for part in one["loc"])
        if one["type"] == "extra_forbidden":
            owner = _PARTS.get(str(one["loc"][0])) if len(one["loc"]) > 1 else ModelConfig
            known = list(owner.model_fields) if owner is not None else []
            meant = nearest(str(one["loc"][-1]), known=known)
            sentences.append(f"unknown key {place}" + (f"; did you mean {meant}?" if meant else ""))
        else:
            sentences.append(f"{place}: {one['msg']}" if place else one["msg"])
    return sentences
