"""One answer out of several workers' answers: repository indexes and statistics. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace_protos.inference import grpc_service_pb2 as pb

_BEST_FIRST: Final = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "UNKNOWN", "")


def merge_indexes(answers: Mapping[str, pb.RepositoryIndexResponse], *, only_ready: bool) -> pb.RepositoryIndexResponse:
    """Each version once, in its best state. Where another worker is in a worse one, the reason names it."""
    said: dict[tuple[str, str], list[tuple[str, pb.RepositoryIndexResponse.ModelIndex]]] = {}
    for replica, answer in sorted(answers.items()):
        for one in answer.models:
            said.setdefault((one.name, one.version), []).append((replica, one))
    merged = pb.RepositoryIndexResponse()
    for (name, version), entries in sorted(said.items()):
        best = min((one for _, one in entries), key=lambda one: _rank(one.state))
        if only_ready and best.state != "READY":
            continue
        worse = [
            f"{one.state} on {replica}" + (f": {one.reason}" if one.reason else "")
            for replica, one in entries
            if _rank(one.state) > _rank(best.state)
        ]
        merged.models.add(
            name=name,
            version=version,
            state=best.state,
            reason="; ".join([*([best.reason] if best.reason else []), *worse]),
        )
    return merged


def _rank(state: str) -> int:
    return _BEST_FIRST.index(state) if state in _BEST_FIRST else len(_BEST_FIRST)


def sum_statistics(answers: Iterable[pb.ModelStatisticsResponse]) -> pb.ModelStatisticsResponse:
    """Counts and durations of each version added up; `last_inference` is the latest."""
    said: dict[tuple[str, str], list[pb.ModelStatistics]] = {}
    for answer in answers:
        for one in answer.model_stats:
            said.setdefault((one.name, one.version), []).append(one)
    return pb.ModelStatisticsResponse(model_stats=[_sum_model(ones) for _, ones in sorted(said.items())])


def _sum_model(ones: Sequence[pb.ModelStatistics]) -> pb.ModelStatistics:
    total = pb.ModelStatistics(name=ones[0].name, version=ones[0].version)
    batches: dict[int, pb.InferBatchStatistics] = {}
    for one in ones:
        total.last_inference = max(total.last_inference, one.last_inference)
        total.inference_count += one.inference_count
        total.execution_count += one.execution_count
        for phase in (
            "success",
            "fail",
            "queue",
            "compute_input",
            "compute_infer",
            "compute_output",
            "cache_hit",
            "cache_miss",
        ):
            _add(getattr(total.inference_stats, phase), getattr(one.inference_stats, phase))
        for batch in one.batch_stats:
            sum_of = batches.setdefault(batch.batch_size, pb.InferBatchStatistics(batch_size=batch.batch_size))
            for phase in ("compute_input", "compute_infer", "compute_output"):
                _add(getattr(sum_of, phase), getattr(batch, phase))
        for key, response in one.response_stats.items():
            for phase in ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"):
                _add(getattr(total.response_stats[key], phase), getattr(response, phase))
        # Memory is a worker's own: two workers' GPUs of one number are two GPUs, so nothing is added up.
        total.memory_usage.extend(one.memory_usage)
    total.batch_stats.extend(batches[size] for size in sorted(batches))
    return total


def _add(total: pb.StatisticDuration, one: pb.StatisticDuration) -> None:
    total.count += one.count
    total.ns += one.ns
