"""What is changed inside Snakemake; the workflow tests run each change in the real one."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from clipnoise.errors import UserError
from clipnoise.studies.config import Config
from clipnoise.studies.snakemake_changes import adapt, let_signals_interrupt


def test_a_part_that_another_version_of_snakemake_lacks_is_named() -> None:
    scheduler = SimpleNamespace(_lock=threading.Lock())
    workflow = SimpleNamespace(
        executor_settings=None,
        scheduler=scheduler,
        dag=SimpleNamespace(check_output_mtime=None),
        local_exec=True,
    )
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(UserError, match="has no job_rate_limiter in this version"):
            adapt(workflow, Config(), print)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_handled_while_the_thread_holds_the_lock_of_the_scheduler() -> None:
    scheduler = SimpleNamespace(_lock=threading.Lock(), handled=False)
    let_signals_interrupt(scheduler)

    def handle(*_: object) -> None:
        scheduler.handled = scheduler._lock.acquire(timeout=5)
        scheduler._lock.release()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with scheduler._lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert scheduler.handled
