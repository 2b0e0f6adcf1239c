"""Merging workers' answers."""

from headrace_gateway.merge import merge_indexes, sum_statistics
from headrace_protos.inference import grpc_service_pb2 as pb


def index(*models: tuple[str, str, str, str]) -> pb.RepositoryIndexResponse:
    merged = pb.RepositoryIndexResponse()
    for name, version, state, reason in models:
        merged.models.add(name=name, version=version, state=state, reason=reason)
    return merged


def test_the_best_state_wins_and_worse_ones_are_named():
    merged = merge_indexes(
        {
            "w1": index(("a", "1", "READY", ""), ("b", "1", "UNAVAILABLE", "bad graph")),
            "w2": index(("a", "1", "UNAVAILABLE", "no memory"), ("b", "1", "LOADING", "")),
        },
        only_ready=False,
    )
    assert [(one.name, one.state, one.reason) for one in merged.models] == [
        ("a", "READY", "UNAVAILABLE on w2: no memory"),
        ("b", "LOADING", "UNAVAILABLE on w1: bad graph"),
    ]


def test_counts_and_durations_are_added_phase_by_phase():
    def stats(size: int, count: int) -> pb.ModelStatisticsResponse:
        one = pb.ModelStatistics(
            name="a", version="1", last_inference=count, inference_count=size * count, execution_count=count
        )
        one.inference_stats.queue.count, one.inference_stats.queue.ns = count, 10 * count
        batch = one.batch_stats.add(batch_size=size)
        batch.compute_infer.count, batch.compute_infer.ns = count, 100 * count
        return pb.ModelStatisticsResponse(model_stats=[one])

    (total,) = sum_statistics([stats(4, 3), stats(4, 5), stats(1, 2)]).model_stats
    assert total.last_inference == 5
    assert total.inference_count == 4 * 3 + 4 * 5 + 2
    assert total.execution_count == 10
    assert (total.inference_stats.queue.count, total.inference_stats.queue.ns) == (10, 100)
    assert [(one.batch_size, one.compute_infer.count, one.compute_infer.ns) for one in total.batch_stats] == [
        (1, 2, 200),
        (4, 8, 800),
    ]
