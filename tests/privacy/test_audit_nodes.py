"""Nodes of a graph in the contract check: no method exceeds the bound declared for a node."""

from __future__ import annotations

import pytest

from clipnoise.audit.controls import CONTROLS
from clipnoise.audit.nodes import DEGREE, check_nodes
from clipnoise.audit.subject import subject
from clipnoise.privacy.microbatches import MicroBatches


def worst(name: str) -> float:
    finding = check_nodes(subject(name))
    assert finding.holds, finding.said
    return float(finding.said.split(" times")[0].split()[-1])


@pytest.mark.quick(name=["dp-sgd", "dp-pmlf"])
@pytest.mark.parametrize("name", ["dp-sgd", "stp-adam", "dp-pmlf", "ime-adam"])
def test_a_node_keeps_to_the_declared_sensitivity_and_comes_close_to_it(name: str) -> None:
    assert 0.7 < worst(name) <= 1 + 1e-6


def test_what_is_replaced_averaged_or_an_oracle_makes_no_claim() -> None:
    averaged = subject("dp-sgd", microbatches=MicroBatches(2))
    for one in (subject("jme-adam"), subject("stp-noiseless"), averaged):
        assert "no claim" in check_nodes(one).said


@pytest.mark.quick(said=[2.0 * DEGREE])
@pytest.mark.parametrize("said", [1.0, 2.0, 2.0 * DEGREE])
def test_a_smaller_sensitivity_is_refuted(said: float) -> None:
    broken = subject("dp-sgd", node_sensitivity=said)
    assert not check_nodes(broken).holds


def test_the_control_is_refuted_by_the_contract_check() -> None:
    build = CONTROLS["node-at-c"].build
    assert build is not None
    finding = check_nodes(build())
    assert not finding.holds
    assert "one node of a graph" in finding.said
