"""The fleet: events in, picture and route table out."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import ModelFailed, ModelLoading, ModelNotFound, NoReplica, VersionNotFound
from headrace_gateway.fleet import Fleet, ModelState, Picture, WorkerState


def ready(name: str, version: str = "1", *, default: bool = True) -> ModelState:
    return ModelState(name, version, "READY", default=default)


def worker(number: int, *models: ModelState, draining: bool = False) -> WorkerState:
    return WorkerState(id=f"w{number}", address=f"127.0.0.1:{number}", models=models, draining=draining)


def table(fleet: Fleet) -> dict:
    return json.loads(fleet.picture().routes(generation=1))


def test_a_lost_worker_leaves_the_table_and_its_model_stays_known():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", worker(1, ready("a")))
    assert fleet.lost("127.0.0.1:1", now=0.0)
    assert table(fleet)["replicas"] == {}
    assert table(fleet)["models"]["a"]["versions"] == {"1": {"replicas": [], "state": "READY", "reason": ""}}
    with pytest.raises(NoReplica):
        fleet.picture().resolve("a")
    assert not fleet.picture().is_ready("a")
    assert not fleet.picture().ready


def test_what_was_lost_long_ago_is_forgotten_unless_it_is_static():
    fleet = Fleet(static=["127.0.0.1:1"], remember=timedelta(seconds=60))
    fleet.heard("127.0.0.1:1", worker(1, ready("static")))
    fleet.heard("127.0.0.1:2", worker(2, ready("listed")))
    fleet.lost("127.0.0.1:1", now=0.0)
    fleet.lost("127.0.0.1:2", now=0.0)
    assert not fleet.forget(now=59.0)
    assert fleet.forget(now=60.0)
    assert set(table(fleet)["models"]) == {"static"}


def test_a_worker_that_speaks_is_kept_although_the_registry_lost_it():
    fleet = Fleet()
    fleet.list(["127.0.0.1:1"])
    fleet.heard("127.0.0.1:1", worker(1, ready("a")))
    fleet.list([])
    assert fleet.addresses() == {"127.0.0.1:1"}
    assert fleet.picture().ready
    fleet.lost("127.0.0.1:1", now=0.0)
    assert fleet.addresses() == frozenset()


def test_a_heartbeat_without_news_changes_nothing():
    fleet = Fleet()
    assert fleet.heard("127.0.0.1:1", worker(1, ready("a")))
    assert not fleet.heard("127.0.0.1:1", worker(1, ready("a")))
    assert fleet.heard("127.0.0.1:1", worker(1, ready("a"), ready("b")))


def test_a_draining_worker_gets_no_requests_but_its_models_are_known():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", worker(1, ready("a"), draining=True))
    fleet.heard("127.0.0.1:2", worker(2, ready("a")))
    assert fleet.picture().resolve("a") == ("1", ("w2",))
    fleet.lost("127.0.0.1:2", now=0.0)
    with pytest.raises(NoReplica):
        fleet.picture().resolve("a")


def test_a_version_is_as_good_as_its_best_worker():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", worker(1, ModelState("a", "1", "FAILED", "no memory", default=True)))
    with pytest.raises(ModelFailed, match="no memory"):
        fleet.picture().resolve("a")
    fleet.heard("127.0.0.1:2", worker(2, ModelState("a", "1", "LOADING", default=True)))
    with pytest.raises(ModelLoading):
        fleet.picture().resolve("a")
    fleet.heard("127.0.0.1:3", worker(3, ready("a")))
    assert fleet.picture().resolve("a") == ("1", ("w3",))
    assert table(fleet)["models"]["a"]["versions"]["1"] == {"replicas": ["w3"], "state": "READY", "reason": ""}


def test_unknown_models_and_versions_are_not_found():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", worker(1, ready("a", "1"), ready("a", "10", default=False)))
    with pytest.raises(ModelNotFound):
        fleet.picture().resolve("b")
    with pytest.raises(VersionNotFound, match="1, 10"):
        fleet.picture().resolve("a", version="2")
    assert fleet.picture().resolve("a", version="10") == ("10", ("w1",))


def test_the_default_stays_with_a_ready_version_while_the_next_one_loads():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", worker(1, ready("a", "1"), ModelState("a", "2", "LOADING")))
    assert table(fleet)["models"]["a"]["default"] == {"1": 100}
    fleet.heard("127.0.0.1:1", worker(1, ready("a", "1", default=False), ready("a", "2")))
    assert table(fleet)["models"]["a"]["default"] == {"2": 100}


def test_workers_that_disagree_on_the_default_are_outvoted():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", worker(1, ready("a", "1"), ready("a", "2", default=False)))
    fleet.heard("127.0.0.1:2", worker(2, ready("a", "1", default=False), ready("a", "2")))
    fleet.heard("127.0.0.1:3", worker(3, ready("a", "1"), ready("a", "2", default=False)))
    assert fleet.picture().default("a") == "1"


def test_one_worker_that_is_reached_in_two_ways_counts_once():
    fleet = Fleet(static=["localhost:1"])
    fleet.heard("localhost:1", worker(1, ready("a")))
    fleet.heard("127.0.0.1:1", worker(1, ready("a")))
    assert table(fleet)["replicas"] == {"w1": {"address": "127.0.0.1:1"}}


def test_two_workers_that_share_an_id_are_told_apart():
    fleet = Fleet()
    fleet.heard("127.0.0.1:1", WorkerState("w", "127.0.0.1:1", (ready("a"),)))
    fleet.heard("127.0.0.1:2", WorkerState("w", "127.0.0.1:2", (ready("a"),)))
    assert sorted(one["address"] for one in table(fleet)["replicas"].values()) == ["127.0.0.1:1", "127.0.0.1:2"]
    assert len(table(fleet)["models"]["a"]["versions"]["1"]["replicas"]) == 2


def test_a_fleet_without_models_is_ready_and_one_without_workers_is_not():
    fleet = Fleet()
    assert not fleet.picture().ready
    fleet.heard("127.0.0.1:1", worker(1))
    assert fleet.picture().ready
    fleet.heard("127.0.0.1:1", worker(1, ModelState("a", "1", "LOADING")))
    assert not fleet.picture().ready


STATES = st.sampled_from(["LOADING", "READY", "UNLOADING", "FAILED"])
MODELS = st.builds(ModelState, st.sampled_from("ab"), st.sampled_from("12"), STATES, default=st.booleans())
EVENTS = st.lists(
    st.tuples(st.integers(1, 4), st.one_of(st.none(), st.tuples(st.lists(MODELS, max_size=4), st.booleans()))),
    max_size=30,
)


@given(EVENTS)
def test_whatever_happens_the_table_names_only_replicas_that_it_lists_and_versions_that_it_has(events):
    fleet = Fleet()
    for number, said in events:
        address = f"127.0.0.1:{number}"
        if said is None:
            fleet.lost(address, now=0.0)
        else:
            models, draining = said
            unique = {(one.name, one.version): one for one in models}
            fleet.heard(address, worker(number, *unique.values(), draining=draining))
    told = table(fleet)
    for name, model in told["models"].items():
        assert set(model["default"]) <= set(model["versions"])
        for version, one in model["versions"].items():
            assert set(one["replicas"]) <= set(told["replicas"])
            assert not one["replicas"] or one["state"] == "READY"
            assert fleet.picture().is_ready(name, version=version) == bool(one["replicas"])


def test_an_empty_picture_has_an_empty_table():
    assert json.loads(Picture().routes(generation=3)) == {"generation": 3, "replicas": {}, "models": {}, "aliases": {}}
