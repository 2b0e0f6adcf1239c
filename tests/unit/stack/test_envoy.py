"""The rendered configuration, as Envoy itself judges it."""

import subprocess
from pathlib import Path

import pytest
import yaml

from headrace.stack import tools
from headrace.stack.envoy import Address, EnvoySettings, render

LOCAL = Address(host="127.0.0.1", port=9001)
ODD = EnvoySettings(
    host="::1",
    gateways=(Address(host="gateway.example", port=9000), Address(host="::1", port=9002)),
    node_id='a "quoted" name: #1',
    identity_headers=(),
    access_log="errors",
    trace_collector=Address(host="collector", port=4317),
    trace_sampling=0.5,
)


@pytest.mark.parametrize(
    "settings",
    [ODD, EnvoySettings(gateways=(LOCAL,)), EnvoySettings(gateways=(LOCAL, LOCAL), access_log="off")],
    ids=["every option", "defaults", "no access log"],
)
def test_envoy_accepts_the_rendered_configuration(settings: EnvoySettings, tmp_path: Path):
    config = tmp_path / "with space.yaml"
    config.write_text(render(settings), encoding="utf-8")
    told = subprocess.run(
        [tools.find(tools.ENVOY), "--mode", "validate", "--config-path", config],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "deprecated" not in told.stderr.lower()


def manager(settings: EnvoySettings) -> dict:
    config = yaml.safe_load(render(settings))
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def test_the_routes_leave_deadlines_to_callers_up_to_the_maximum():
    door = manager(EnvoySettings(gateways=(LOCAL,)))
    watch, calls, _ = door["route_config"]["virtual_hosts"][0]["routes"]
    assert door["common_http_protocol_options"]["max_stream_duration"] == "600.0s"
    assert calls["route"]["timeout"] == "0s"
    assert "max_stream_duration" not in calls["route"]
    assert watch["match"]["path"] == "/grpc.health.v1.Health/Watch"
    assert watch["route"]["max_stream_duration"] == {"max_stream_duration": "0s"}


def test_only_what_never_reached_a_gateway_is_retried():
    policy = manager(EnvoySettings(gateways=(LOCAL,)))["route_config"]["virtual_hosts"][0]["retry_policy"]
    assert policy["retry_on"] == "connect-failure,refused-stream"
    assert policy["num_retries"] == 1


def test_headers_that_name_a_caller_do_not_pass_the_door():
    assert "x-tenant-id" in manager(EnvoySettings(gateways=(LOCAL,)))["route_config"]["request_headers_to_remove"]


def test_values_are_quoted_so_that_none_can_change_the_configuration():
    assert yaml.safe_load(render(ODD))["node"]["id"] == 'a "quoted" name: #1'


def test_the_administration_page_is_on_loopback_only():
    admin = yaml.safe_load(render(EnvoySettings(gateways=(LOCAL,), host="0.0.0.0")))["admin"]
    assert admin["address"]["socket_address"]["address"] == "127.0.0.1"
