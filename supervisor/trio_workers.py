"""No thread left behind: the workers of trio's thread cache that a guest run used exit with it.

A worker stays idle for ten seconds before it exits.  Whoever opened and closed a runtime should find the threads he had
before, so when a guest run has ended, the workers it used and that are idle now are told to exit; workers that other
trio runs use, or used and we did not, are not touched.
"""

# ruff: noqa: SLF001 - trio's, with the precautions told at `retire`

from __future__ import annotations

import logging
import threading
from typing import Any

__all__ = ["retire"]

_log = logging.getLogger("fencepost.supervisor")


class _LastCall:
    """What a retired worker of trio's thread cache finds in place of its cache and of its lock: no more jobs."""

    def __init__(self, worker: object) -> None:
        self._idle_workers = {worker: None}

    def acquire(self, timeout: float) -> bool:  # noqa: ARG002 - a lock's signature
        return False


def retire(threads: set[threading.Thread]) -> None:
    """Make the idle ones of these workers of trio's thread cache exit now, and wait for that.

    Private attributes of trio: a worker waits on `_worker_lock` for a `_job`, and exits when that wait times out and it
    finds itself among the `_idle_workers` of its `_thread_cache`.  A worker we take out of the real cache is ours
    alone (taking out is how the cache itself hands out jobs), so giving it a cache of its own, and a lock that has
    always timed out, lets it leave by its own door.  One last empty job wakes it from the wait it is in.  If trio looks
    different, nothing is done and the worker exits after trio's ten seconds.
    """
    try:
        from trio._core._thread_cache import THREAD_CACHE  # private: may be gone

        idle: dict[Any, None] = THREAD_CACHE._idle_workers  # pyright: ignore[reportPrivateUsage]
        mine = [worker for worker in list(idle) if worker._thread in threads]
        for worker in mine:
            lock, _ = worker._worker_lock, (worker._thread_cache, worker._job)
            if idle.pop(worker, threads) is threads:
                continue  # another trio run was faster
            last_call = _LastCall(worker)
            worker._job = (lambda: None, lambda _: None, None)
            worker._thread_cache = last_call
            worker._worker_lock = last_call
            lock.release()
            worker._thread.join(timeout=1.0)
    except (ImportError, AttributeError, TypeError) as error:
        _log.debug("trio's thread cache is not what it was: %r", error)
