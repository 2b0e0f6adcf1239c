"""Loads one version, from its files to something that can be installed: session, signature, probe, executors.

Blocking and without state: it runs in a thread, beside whatever serves now, and touches nothing of it (V18).
"""

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from headrace_core.cards import Card
from headrace_core.settings import nearest
from headrace_protos.inference import model_config_pb2
from headrace_worker import model_config, triton_config
from headrace_worker import signature as signatures
from headrace_worker.cuda import CudaExecutor
from headrace_worker.executor import Executor
from headrace_worker.model_config import ConfigProblem, ModelConfig
from headrace_worker.probe import Finding, probe
from headrace_worker.repository import FoundModel, VersionFiles
from headrace_worker.session import CPU, LoadFailed, Options, Session
from headrace_worker.signature import Signature

PLATFORM: Final = "onnxruntime_onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the worker decides for models that don't say."""

    device: str
    instances: int
    """0: one for each processor that a run doesn't use."""
    processors: int


@dataclass(frozen=True, slots=True)
class Configured:
    """A model's configuration and where it came from."""

    config: ModelConfig
    notes: tuple[str, ...]
    triton: model_config_pb2.ModelConfig | None
    fingerprint: str
    card: Card | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A version that is ready to be installed, or is."""

    name: str
    version: str
    fingerprint: str
    configured: Configured
    signature: Signature
    batching: bool
    max_rows: int
    costs: tuple[tuple[int, float], ...]
    provider: str
    instances: int
    notes: tuple[str, ...]
    """What was decided and why, and what of the configuration had no meaning; the version's status."""
    metadata: Mapping[str, str]
    """The model file's own metadata."""
    executors: Sequence[Executor]

    def as_spec(self) -> dict[str, Any]:
        """As the Rust front reads it (`ModelSpec`)."""
        queue = self.configured.config.queue
        return {
            "name": self.name,
            "version": self.version,
            "platform": PLATFORM,
            "inputs": [one.as_spec() for one in self.signature.inputs],
            "outputs": [one.as_spec() for one in self.signature.outputs],
            "max_rows": self.max_rows,
            "batching": self.batching,
            "parameters": [],
            "queue": {
                "max_queue_delay_us": round(queue.max_queue_delay.total_seconds() * 1e6),
                "max_queue_rows": queue.max_queue_rows,
                "max_queue_bytes": queue.max_queue_bytes,
                "max_queue_requests": queue.max_queue_requests,
                "default_priority": queue.default_priority,
                "priority_levels": queue.priority_levels,
                "default_timeout_us": round(queue.default_timeout.total_seconds() * 1e6),
                "learn_costs": queue.learn_costs,
            },
            "costs": [[rows, cost] for rows, cost in self.costs],
        }


def configure(found: FoundModel, *, override: str = "") -> Configured:
    """The configuration of a model: `config.pbtxt`, then `model.yaml` over it. `override` is Triton's JSON instead.

    Raises:
        ConfigProblem: a file is wrong.
    """
    document: dict[str, Any] = {}
    triton: triton_config.Translated | None = None
    if override:
        triton = triton_config.read_json(override, model=found.name)
        document = dict(triton.document)
    else:
        if found.triton_config is not None:
            triton = triton_config.read(found.triton_config, model=found.name)
            document = dict(triton.document)
        if found.config is not None:
            document |= model_config.read_document(found.config)
    config = model_config.parse(document, name=model_config.FILE_NAME)
    card: Card | None = None
    if config.card is not None and found.folder is not None:
        try:
            card = config.card.delivered(found.folder)
        except ValueError as error:
            raise ConfigProblem(str(error)) from error
    elif config.card is not None:
        card = config.card
    return Configured(
        config=config,
        notes=triton.notes if triton is not None else (),
        triton=triton.message if triton is not None else None,
        fingerprint=found.config_fingerprint + hashlib.sha256(override.encode()).hexdigest()[:8],
        card=card,
    )


def fingerprint(files: VersionFiles, configured: Configured) -> str:
    """The same for the same files and configuration."""
    return f"{files.fingerprint}-{configured.fingerprint}"


def load(files: VersionFiles, configured: Configured, *, defaults: Defaults) -> Loaded:
    """Loads, probes and warms up.

    Raises:
        LoadFailed: the text says why, fit for callers.
        ConfigProblem: the configuration doesn't fit the model.
    """
    if files.problem:
        raise LoadFailed(files.problem)
    config = configured.config
    options = _options(config, defaults)
    session, finding, extra = _prove(files, configured, options)
    batching = _batches(config, finding)
    found = finding.signature
    # Where each request runs alone, no axis counts anything.
    shown = found if batching else found.with_axes({}, {})
    instances = config.instances or defaults.instances or _default_instances(session, config, defaults)
    shrinks = config.arena == "shrink" or (config.arena == "auto" and found.varies and session.provider == CPU)
    strings = any(one.datatype.name == "BYTES" for one in (*found.inputs, *found.outputs))
    kind = CudaExecutor if session.on_cuda and not strings else Executor
    return Loaded(
        name=files.model,
        version=files.version,
        fingerprint=fingerprint(files, configured),
        configured=configured,
        signature=shown,
        batching=batching,
        max_rows=config.max_batch_rows,
        costs=finding.costs if batching else finding.costs[:1],
        provider=session.provider,
        instances=instances,
        notes=(finding.why, *extra, *configured.notes),
        metadata=session.metadata,
        executors=[
            kind(session, model=f"{files.model}/{files.version}", signature=shown, shrink_arena=shrinks)
            for _ in range(instances)
        ],
    )


def _options(config: ModelConfig, defaults: Defaults) -> Options:
    return Options(
        intra_op_threads=config.intra_op_threads,
        inter_op_threads=config.inter_op_threads,
        device=config.device or defaults.device,
        providers=tuple((one.name, one.options) for one in config.providers),
        optimisation="all" if config.optimisation == "auto" else config.optimisation,
        disabled_optimizers=config.disabled_optimizers,
        arena=config.arena != "off",
        entries=config.session_options,
    )


def _prove(files: VersionFiles, configured: Configured, options: Options) -> tuple[Session, Finding, tuple[str, ...]]:
    """A session and what the probe found; with milder optimisation if the model only runs with that."""
    session = _open(files, options)
    mild = configured.config.optimisation == "auto"
    try:
        finding = _examine(session, files, configured)
    except LoadFailed:
        if not mild:
            raise
        finding = None
    if finding is not None and (finding.ran or not mild):
        return session, finding, ()
    # Some of the runtime's graph rewrites break models that are right; the basic ones are safe.
    second = _open(files, replace(options, optimisation="basic"))
    milder = _examine(second, files, configured)
    if milder.ran:
        return second, milder, ("runs only with basic graph optimisation, so that is what it has",)
    return session, finding or milder, ()


def _open(files: VersionFiles, options: Options) -> Session:
    linked = files.linked_data
    return Session(files.path, options=options, linked_data=linked)


def _examine(session: Session, files: VersionFiles, configured: Configured) -> Finding:
    config = configured.config
    declared = signatures.read(session.inputs, session.outputs)
    _check_names(declared, configured)
    if not config.warmup:
        return _unproven(declared, config)
    return probe(
        session,
        declared,
        batch_axes=config.batch_axes,
        examples=config.examples,
        max_rows=config.max_batch_rows,
        quantised=_quantised(files.path),
        batching=config.batching,
    )


def _unproven(declared: Signature, config: ModelConfig) -> Finding:
    guessed = signatures.guesses(declared.inputs, given=config.batch_axes)
    if config.batching != "on" or not guessed:
        return Finding(declared, batches=False, pays=False, why="served unbatched: without warm-up nothing was probed")
    outputs = {one.name: config.batch_axes.get(one.name, 0 if one.dims else None) for one in declared.outputs}
    return Finding(
        declared.with_axes(guessed[0], outputs),
        batches=True,
        pays=True,
        why="batched because model.yaml says so; without warm-up nothing was probed",
    )


def _batches(config: ModelConfig, finding: Finding) -> bool:
    if config.batching == "off":
        return False
    if config.batching == "on":
        if not finding.batches:
            raise ConfigProblem(f"batching is on, but {finding.why.removeprefix('served unbatched: ')}")
        return True
    return finding.batches and finding.pays


def _check_names(declared: Signature, configured: Configured) -> None:
    inputs = [one.name for one in declared.inputs]
    tensors = [*inputs, *(one.name for one in declared.outputs)]
    for key, names, known in (
        ("batch_axes", configured.config.batch_axes, tensors),
        ("examples", configured.config.examples, inputs),
    ):
        for name in names:
            if name not in known:
                meant = nearest(name, known=known)
                hint = f"; did you mean {meant}?" if meant else f"; it has {', '.join(known)}"
                raise ConfigProblem(f"{key}: the model has no {name!r}{hint}")
    if configured.triton is not None:
        wrong = triton_config.disagreements(
            configured.triton,
            inputs={one.name: one.datatype.triton for one in declared.inputs},
            outputs={one.name: one.datatype.triton for one in declared.outputs},
        )
        if wrong:
            raise ConfigProblem("config.pbtxt: " + "; ".join(wrong))


def _quantised(path: Path) -> bool:
    """Whether the graph quantises activations as it runs, so that a batch shares one scale."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped.find(b"DynamicQuantize") >= 0


def _default_instances(session: Session, config: ModelConfig, defaults: Defaults) -> int:
    if session.provider != CPU:
        return 2  # one copies while the other computes
    return max(1, defaults.processors // max(config.intra_op_threads, config.inter_op_threads))
