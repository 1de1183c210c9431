"""The self-check of a machine passes on sound code, and names what is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from clipnoise.audit import selfcheck
from clipnoise.cli import main
from clipnoise.data.base import dataset_class
from clipnoise.gradients.factored.engine import FactoredEngine
from clipnoise.run.ranks import Ranks, started
from clipnoise.run.setup import exact_arithmetic
from clipnoise.run.train import Run


@pytest.fixture(autouse=True)
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long: repetitions, and the start of another process."""
    monkeypatch.setattr(selfcheck, "REPETITIONS", 1)
    monkeypatch.setattr(selfcheck, "TIMED", ("logistic",))
    monkeypatch.setattr(selfcheck, "started", lambda *_: nullcontext(Ranks()))


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what is said of each check, by its name."""
    said = capsys.readouterr().out.splitlines()
    return {line[8:28].strip(): line[:8].strip() for line in said if line[:2] in ("ok", "FA")}


@pytest.mark.long
def test_every_check_passes_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selfcheck", "--device", "cpu"]) == 0
    found = lines(capsys)
    assert {"engines, lstm", "sensitivity", "resume", "memory", "speed, logistic"} <= set(found)
    assert set(found.values()) == {"ok"}


@pytest.mark.long
def test_two_processes_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "started", started)
    with TemporaryDirectory() as folder:
        dataset_class("digits")().prepare(Path(folder))
        parameters = len(selfcheck._moved(Ranks(), folder, "cpu"))
    said = selfcheck._two_processes("cpu")
    assert said.endswith(f"send {3 * 4 * parameters:,} bytes a step")  # the sum twice, the noise


@pytest.mark.long
def test_processes_that_end_elsewhere_fail_a_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, moved = iter((1.0, 1.001)), selfcheck._moved
    monkeypatch.setattr(selfcheck, "_moved", lambda *given: next(whole) * moved(*given))
    assert main(["selfcheck", "--device", "cpu"]) == 1
    assert lines(capsys)["two processes"] == "FAILED"


def test_a_sum_that_is_too_long_fails_two_checks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = FactoredEngine.clipped_sum

    def longer(*given: Any, **named: Any) -> torch.Tensor:
        return 1.01 * sound(*given, **named)

    monkeypatch.setattr(FactoredEngine, "clipped_sum", longer)
    assert main(["selfcheck", "--device", "cpu"]) == 1
    found = lines(capsys)
    assert found["sensitivity"] == found["engines, cnn-5"] == "FAILED"
    assert found["resume"] == "ok"


@pytest.mark.long
def test_a_state_that_is_not_saved_whole_fails_the_check_of_resuming(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Run.get_state

    def rounded(self: Run) -> dict[str, torch.Tensor]:
        return whole(self) | {"state/theta": self.state.theta.round()}

    monkeypatch.setattr(Run, "get_state", rounded)
    assert main(["selfcheck", "--device", "cpu"]) == 1
    assert lines(capsys)["resume"] == "FAILED"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selfcheck", "--device", "cuda"]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err


# Kinds of attention whose sums have an order that changes, and how torch turns them off.
FUSED = {
    torch.backends.cuda.flash_sdp_enabled: torch.backends.cuda.enable_flash_sdp,
    torch.backends.cuda.mem_efficient_sdp_enabled: torch.backends.cuda.enable_mem_efficient_sdp,
    torch.backends.cuda.cudnn_sdp_enabled: torch.backends.cuda.enable_cudnn_sdp,
}


@pytest.fixture
def settings() -> Iterator[None]:
    """Put torch's settings back."""
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, convolution.allow_tf32, convolution.benchmark)
    yield
    matmul.allow_tf32, convolution.allow_tf32, convolution.benchmark = before
    torch.use_deterministic_algorithms(False)
    for enable in FUSED.values():
        enable(True)


@pytest.mark.usefixtures("settings")
def test_a_gpu_computes_in_full_float32_and_repeatably(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert torch.backends.cudnn.allow_tf32  # what torch does unless it is told
    exact_arithmetic("cuda")
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.are_deterministic_algorithms_enabled()
    assert not any(enabled() for enabled in FUSED)
