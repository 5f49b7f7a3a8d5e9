"""Ranks on hosts with addresses of their own, and what their interfaces send."""

from __future__ import annotations

import pytest
from tests.distributed.conftest import once

from benchmarks import namespaces, sharded

CASE = sharded.Case(ranks=2, centers=6000, features=16, queries=64)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    problem = namespaces.obstacle()
    if problem is not None:
        pytest.skip(problem)
    return once(tmp_path_factory, "hosts", lambda folder: sharded.on_hosts(CASE))


@pytest.mark.timeout(280)
def test_traffic_between_hosts_is_that_of_the_model(measured):
    model = sharded.modelled(CASE, measured)
    for kind, expected in model._asdict().items():
        assert measured["bytes"][kind] == pytest.approx(expected, rel=0.1, abs=1)


@pytest.mark.timeout(280)
def test_interfaces_send_what_was_counted_and_headers(measured):
    counted = sum(measured["bytes"].values())
    assert counted < measured["interface"] < 1.1 * counted


def test_without_ip_there_is_a_reason(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert namespaces.obstacle() == "iproute2 (ip) is not installed"
