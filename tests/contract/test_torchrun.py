"""A loop of one's own that torchrun starts: on one node, and on two with an agent on each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import rank_cases
import torch
from torch import Tensor

pytestmark = pytest.mark.long  # each process imports torch
ROUNDING = 1e-4  # of float32, relative to how far the parameters moved
Found = dict[int, tuple[Tensor, tuple[str, str, int]]]
SCRIPT = """
import atexit, os, sys
import rank_cases
import torch

# Runs last. A group whose threads still run when the program ends aborts it once in a while.
atexit.register(lambda: torch.distributed.is_initialized() and os._exit(4))
rank, training = int(os.environ["RANK"]), rank_cases.own_training(int(os.environ["RANK"]))
if rank == 1 and sys.argv[2:] == ["dies"]:
    next(iter(training))
    os._exit(3)
theta = rank_cases.own_theta(training)
where = os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], training.bytes_sent
torch.save((theta, where), f"{sys.argv[1]}/{rank}.pt")
"""


def agents(folder: Path, nodes: int, each: int, *words: str) -> list[tuple[int, str]]:
    """Run the script by torchrun as each of several nodes would; return how each agent ended."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"]
    command += [f"--nproc-per-node={each}", "--rdzv-backend=c10d", "--rdzv-id=test"]
    command += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    command += [str(folder / "script.py"), str(folder), *words]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(nodes)
    ]
    try:
        said = [agent.communicate(timeout=300)[0] for agent in started]
    finally:
        for agent in started:
            agent.kill()
    return [(agent.returncode, text) for agent, text in zip(started, said, strict=True)]


def found(folder: Path, nodes: int, each: int) -> Found:
    """Return the parameters of every process, with its place on its node, its node, and bytes."""
    for code, said in agents(folder, nodes, each):
        assert code == 0, said
    return {rank: torch.load(folder / f"{rank}.pt") for rank in range(nodes * each)}


@pytest.fixture(scope="module")
def two_nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Found:
    return found(tmp_path_factory.mktemp("two") / "nodes", nodes=2, each=1)


def test_agents_on_two_nodes_train_one_network_together(
    two_nodes: Found,
) -> None:
    """Both nodes have a process 0; were each alone, nothing would be sent."""
    places = {rank: where for rank, (_, where) in two_nodes.items()}
    assert {rank: (local, node) for rank, (local, node, _) in places.items()} == {
        0: ("0", "0"),
        1: ("0", "1"),
    }
    theta = two_nodes[0][0]
    assert torch.equal(two_nodes[1][0], theta)
    assert all(sent >= rank_cases.STEPS * 3 * theta.nbytes for _, _, sent in places.values())


def test_two_nodes_end_where_one_process_does(
    two_nodes: Found,
) -> None:
    start = torch.cat([p.detach().flatten() for p in rank_cases.Net(0).parameters()])
    moved = (rank_cases.own_theta(rank_cases.own_training(0)) - start).double()
    apart = (two_nodes[0][0] - start).double() - moved
    assert float(moved.norm()) > 0
    assert float(apart.norm()) < ROUNDING * float(moved.norm())


def test_two_nodes_end_bit_for_bit_where_two_processes_of_one_node_do(
    two_nodes: Found, tmp_path: Path
) -> None:
    one_node = found(tmp_path / "one node", nodes=1, each=2)
    assert {where[1] for _, where in one_node.values()} == {"0"}
    assert torch.equal(one_node[0][0], two_nodes[0][0])


def test_a_process_that_dies_on_one_node_ends_the_training_on_the_other(tmp_path: Path) -> None:
    ended = agents(tmp_path / "dying", 2, 1, "dies")
    assert [code == 0 for code, _ in ended] == [False, False]
    assert not list((tmp_path / "dying").glob("*.pt"))
