"""`inference.GRPCInferenceService` without its two hot methods, which the Rust front answers before they get here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NoReturn

from headrace_core import logging as logs
from headrace_core.errors import (
    InvalidParameter,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    StateConflict,
    Unsupported,
    VersionNotFound,
    Violation,
)
from headrace_protos.inference import grpc_service_pb2 as pb
from headrace_protos.inference import grpc_service_pb2_grpc as rpc
from headrace_worker import VERSION, describe
from headrace_worker.models import Models, State, Version
from headrace_worker.repository import Repository, is_version

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc.aio

    from headrace_core.lifecycle import Readiness
    from headrace_worker.loader import Loader
    from headrace_worker.loading import Loaded
    from headrace_worker.progress import Progress

    Context = grpc.aio.ServicerContext[Any, Any]

EXTENSIONS: Final = (
    "model_repository",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
)
"""Exactly what works here. Clients read it to decide what to ask for."""

_SHARED_MEMORY: Final = "shared memory is not supported: tensors travel in the request, raw contents are not copied"
_TRACE_OFF: Final = {"trace_level": ["OFF"], "trace_rate": ["0"], "trace_count": ["-1"], "log_frequency": ["0"]}


class InferenceServicer(rpc.GRPCInferenceServiceServicer):
    """What is served, what it needs, how it fares, and control over it."""

    def __init__(
        self,
        *,
        models: Models,
        loader: Loader,
        repository: Repository,
        progress: Progress,
        readiness: Readiness,
        controllable: bool,
    ) -> None:
        self._models = models
        self._loader = loader
        self._repository = repository
        self._progress = progress
        self._readiness = readiness
        self._controllable = controllable

    # What is served

    async def ServerLive(self, _request: pb.ServerLiveRequest, _context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: pb.ServerReadyRequest, _context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=server_ready(self._readiness, self._models, self._progress))

    async def ModelReady(self, request: pb.ModelReadyRequest, _context: Context) -> pb.ModelReadyResponse:
        # An unknown model is not ready, rather than an error: those who wait for one ask this in a loop.
        ready = not self._readiness.draining and self._progress.ready(request.name, request.version)
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, _request: pb.ServerMetadataRequest, _context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="headrace", version=VERSION, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, _context: Context) -> pb.ModelMetadataResponse:
        loaded = self._loaded(request.name, request.version)
        versions = [one.version for one in self._models.versions(request.name) if one.state is State.READY]
        return describe.metadata(loaded, versions=versions)

    async def ModelConfig(self, request: pb.ModelConfigRequest, _context: Context) -> pb.ModelConfigResponse:
        return pb.ModelConfigResponse(config=describe.configuration(self._loaded(request.name, request.version)))

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, _context: Context
    ) -> pb.ModelStatisticsResponse:
        if request.name:
            self._known(request.name, request.version)
        self._progress.forget()
        counted = self._progress.statistics()
        chosen = [
            one
            for one in self._models
            if one.loaded is not None
            and request.name in {"", one.name}
            and (not request.name or request.version in {"", one.version})
        ]
        return pb.ModelStatisticsResponse(
            model_stats=[
                describe.statistics(one.name, one.version, counted=counted.get((one.name, one.version), {}))
                for one in chosen
            ]
        )

    # Control

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, _context: Context
    ) -> pb.RepositoryIndexResponse:
        _only_repository(request.repository_name)
        # Looked up first: what is loaded while the folder is read must not fall between the two lists.
        found = {} if request.ready else await asyncio.to_thread(self._repository.scan)
        entries = [describe.index_entry(one) for one in self._models]
        if not request.ready:
            known = {(one.name, one.version) for one in self._models}
            served = set(self._models.names())
            for name, model in found.items():
                reason = "unloaded" if name in self._loader.unloaded else "not loaded"
                if not model.versions and name not in served:
                    why = "; ".join(f"{entry}: {text}" for entry, text in model.ignored.items())
                    entries.append(_unavailable(name, "", why or "no version to serve"))
                entries += [
                    _unavailable(name, version, files.problem or reason)
                    for version, files in model.versions.items()
                    if (name, version) not in known and (name not in served or files.problem)
                ]
        entries = [one for one in entries if not request.ready or one.state == "READY"]
        entries.sort(key=lambda one: (one.name, int(one.version or 0)))
        return pb.RepositoryIndexResponse(models=entries)

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, _context: Context
    ) -> pb.RepositoryModelLoadResponse:
        self._check_control(request.repository_name)
        override = ""
        for name, parameter in request.parameters.items():
            if name == "config":
                override = _string(name, parameter)
            elif name.startswith("file:"):
                raise Unsupported(
                    "models are loaded from the worker's folder, not from the request: put the file there",
                    violations=[Violation(f"parameters[{name}]", "model files in a request are not supported")],
                )
            else:
                raise _unknown_parameter(name, known="config")
        await self._loader.load(request.model_name, override=override)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, _context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        self._check_control(request.repository_name)
        for name in request.parameters:
            # There are no ensembles, so nothing depends on a model: true and false mean the same.
            if name != "unload_dependents":
                raise _unknown_parameter(name, known="unload_dependents")
        await self._loader.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    # Settings

    async def TraceSetting(self, request: pb.TraceSettingRequest, _context: Context) -> pb.TraceSettingResponse:
        if request.model_name:
            self._known(request.model_name, "")
        for name, value in request.settings.items():
            if list(value.value) not in ([], _TRACE_OFF.get(name, [])):
                raise Unsupported(
                    "Triton's trace files are not written here, so their settings can't change",
                    violations=[Violation(f"settings[{name}]", f"can't be {', '.join(value.value)}")],
                )
        return pb.TraceSettingResponse(
            settings={name: pb.TraceSettingResponse.SettingValue(value=value) for name, value in _TRACE_OFF.items()}
        )

    async def LogSettings(self, request: pb.LogSettingsRequest, _context: Context) -> pb.LogSettingsResponse:
        wanted: dict[str, bool | int | str] = {}
        for name, value in request.settings.items():
            which = value.WhichOneof("parameter_choice")
            if which is not None:
                wanted[name] = getattr(value, which)
        _apply_log_settings(wanted)
        return _log_settings()

    # Not here

    async def ModelInfer(self, _request: pb.ModelInferRequest, _context: Context) -> NoReturn:
        raise Unsupported("inference is answered by the front; this half has no path for it")

    def ModelStreamInfer(self, _requests: object, _context: Context) -> NoReturn:
        raise Unsupported("inference is answered by the front; this half has no path for it")

    async def SystemSharedMemoryStatus(self, _request: object, _context: Context) -> NoReturn:
        raise Unsupported(_SHARED_MEMORY)

    async def SystemSharedMemoryRegister(self, _request: object, _context: Context) -> NoReturn:
        raise Unsupported(_SHARED_MEMORY)

    async def SystemSharedMemoryUnregister(self, _request: object, _context: Context) -> NoReturn:
        raise Unsupported(_SHARED_MEMORY)

    async def CudaSharedMemoryStatus(self, _request: object, _context: Context) -> NoReturn:
        raise Unsupported(_SHARED_MEMORY)

    async def CudaSharedMemoryRegister(self, _request: object, _context: Context) -> NoReturn:
        raise Unsupported(_SHARED_MEMORY)

    async def CudaSharedMemoryUnregister(self, _request: object, _context: Context) -> NoReturn:
        raise Unsupported(_SHARED_MEMORY)

    def _known(self, name: str, version: str) -> Version:
        if not self._models.versions(name):
            raise ModelNotFound(f"no model named {name!r} is loaded")
        found = self._models.get(name, version)
        if found is None:
            what = "a version is a decimal number from 1" if not is_version(version) else "it has no such version"
            raise VersionNotFound(f"model {name!r}: no version {version!r}; {what}")
        return found

    def _loaded(self, name: str, version: str) -> Loaded:
        found = self._known(name, version)
        if found.loaded is not None:
            return found.loaded
        if found.state is State.FAILED:
            raise ModelFailed(f"model {name!r} version {found.version} failed to load: {found.reason}")
        raise ModelLoading(f"model {name!r} version {found.version} is loading")

    def _check_control(self, repository: str) -> None:
        _only_repository(repository)
        if not self._controllable:
            raise StateConflict("this worker takes no load or unload calls; its MODEL_CONTROL is not `explicit`")
        if self._readiness.draining:
            raise StateConflict("this worker is stopping")


def server_ready(readiness: Readiness, models: Models, progress: Progress) -> bool:
    """The rule: start-up is done, no drain, and every served model makes progress.

    A model that failed to load doesn't take the others away; `ModelReady` tells of it.
    """
    return readiness.ready and all(progress.moves(one.name, one.version) for one in models if one.state is State.READY)


def _unavailable(name: str, version: str, reason: str) -> pb.RepositoryIndexResponse.ModelIndex:
    return pb.RepositoryIndexResponse.ModelIndex(name=name, version=version, state="UNAVAILABLE", reason=reason)


def _only_repository(name: str) -> None:
    if name:
        raise InvalidParameter(
            f"there is one repository, without a name; got {name!r}",
            violations=[Violation("repository_name", "must be empty")],
        )


def _string(name: str, parameter: pb.ModelRepositoryParameter) -> str:
    if parameter.WhichOneof("parameter_choice") != "string_param":
        raise InvalidParameter(
            f"parameter {name!r} must be a string", violations=[Violation(f"parameters[{name}]", "must be a string")]
        )
    return parameter.string_param


def _unknown_parameter(name: str, *, known: str) -> InvalidParameter:
    return InvalidParameter(
        f"unknown parameter {name!r}; known is {known}", violations=[Violation(f"parameters[{name}]", "unknown")]
    )


def _apply_log_settings(wanted: dict[str, bool | int | str]) -> None:
    level: logs.Level = logs.get_level()
    for name, value in wanted.items():
        if name == "log_verbose_level" and not isinstance(value, str):
            level = "debug" if value else ("info" if level == "debug" else level)
        elif name == "log_info" and isinstance(value, bool):
            level = ("debug" if level == "debug" else "info") if value else "warning"
        elif name == "log_warning" and isinstance(value, bool):
            level = ("warning" if level == "error" else level) if value else "error"
        elif name == "log_error" and value is True:
            pass  # errors are always logged
        elif name == "log_file" and value == "":
            pass  # standard error is where logs go
        elif name == "log_format" and value == _log_format():
            pass
        else:
            raise _wrong_log_setting(name, value)
    logs.set_level(level)


def _wrong_log_setting(name: str, value: bool | int | str) -> Exception:  # noqa: FBT001 - the value itself
    known: dict[str, Callable[[str], Exception]] = {
        "log_error": Unsupported,
        "log_file": Unsupported,
        "log_format": Unsupported,
    }
    kind = known.get(name, InvalidParameter)
    return kind(f"log setting {name!r} can't be {value!r} here")


def _log_format() -> str:
    return "default"


def _log_settings() -> pb.LogSettingsResponse:
    level = logs.get_level()
    setting = pb.LogSettingsResponse.SettingValue
    return pb.LogSettingsResponse(
        settings={
            "log_file": setting(string_param=""),
            "log_info": setting(bool_param=level in {"debug", "info"}),
            "log_warning": setting(bool_param=level != "error"),
            "log_error": setting(bool_param=True),
            "log_verbose_level": setting(uint32_param=1 if level == "debug" else 0),
            "log_format": setting(string_param=_log_format()),
        }
    )
