"""Runs as Ray core tasks: tried again where their worker or node is lost, and not where they fail."""

import contextlib
import importlib.util
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .base import POLL_SECONDS, Engine, Job, LostRunError, Outcome, Wanted, Work, worker_environment

KIND = "semfocus-kind"
"""The label by which nodes say what kind they are: `ray start --labels semfocus-kind=epyc`. Where none does, GPUs' types tell."""
GPU_KIND = "ray.io/accelerator-type"
RETRIES = 10  # of a lost worker or node
LOOK_SECONDS = 5.0  # between two looks at the cluster's size, and at what runs
TELL_SECONDS = 1.0
CONNECT_SECONDS = 5.0


class Board:
    """An actor that knows which runs are being trained where."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, dict[str, Any] | None]] = {}

    def note(self, index: int, node: str, entry: dict[str, Any] | None) -> None:
        """A run is at work, and this was its last epoch."""
        self.rows[index] = (node, entry)

    def read(self, begun: list[int]) -> dict[int, tuple[str, dict[str, Any] | None]]:
        """Of those, the ones at work; the others are forgotten."""
        self.rows = {index: self.rows[index] for index in begun if index in self.rows}
        return self.rows


def _task(work: Work, job: Job, cpus: int, board: Any) -> Outcome:
    return work(job, cpus, _Teller(board, job.index))


class _Teller:
    """Writes on the board, about once a second at most; waits for nothing."""

    def __init__(self, board: Any, index: int):
        self.board, self.index, self.node, self.next = board, index, socket.gethostname(), 0.0
        board.note.remote(index, self.node, None)

    def __call__(self, entry: dict[str, Any]) -> None:
        if time.monotonic() >= self.next:
            self.board.note.remote(self.index, self.node, entry)
            self.next = time.monotonic() + TELL_SECONDS


class RayEngine(Engine):
    """Tasks on a Ray cluster; see `Wanted`."""

    here = False

    def __init__(self, wanted: Wanted):
        if importlib.util.find_spec("ray") is None:
            raise ValueError("the engine ray needs Ray, which is not installed: pip install 'hf-semfocus[ray]'")
        # Under `uv run` Ray would make an environment for each worker; the nodes have theirs.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        self._ray: Any = ray
        self._wanted = wanted
        self._connected = not ray.is_initialized()
        if self._connected:
            _connect(ray, wanted.address)
        self._looked, self._slots, self._seen = 0.0, 0, (0.0, dict[int, Any]())
        self._indices: dict[Any, int] = {}
        self._label = KIND
        try:
            self._check_size()
        except ValueError:
            self.close()
            raise
        # A worker that has had one GPU does not see another: it is used again where its node has no other.
        calls = int(wanted.gpus > 0 and any(node["Resources"].get("GPU", 0) > 1 for node in self._nodes()))
        self._remote: Any = ray.remote(
            max_calls=calls,
            num_cpus=wanted.cpus,
            num_gpus=wanted.gpus,
            max_retries=RETRIES,
            retry_exceptions=False,
            runtime_env={"env_vars": worker_environment(wanted.cpus)},
        )(_task)
        self._board: Any = ray.remote(Board).options(num_cpus=0, max_restarts=-1).remote()

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _fit(self, node: dict[str, Any]) -> int:
        """Runs at once on a node."""
        has, wanted = node["Resources"], self._wanted
        on_cpus = int(has.get("CPU", 0) // wanted.cpus)
        return min(on_cpus, int(has.get("GPU", 0) / wanted.gpus + 1e-9)) if wanted.gpus else on_cpus

    def _check_size(self) -> None:
        nodes = self._nodes()
        if not any(map(self._fit, nodes)):
            sizes = Counter((node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0)) for node in nodes)
            has = ", ".join(
                f"{count} with {cpus:g} CPUs and {gpus:g} GPUs" for (cpus, gpus), count in sorted(sizes.items())
            )
            raise ValueError(
                f"a run asks for {self._wanted.cpus} CPUs and {self._wanted.gpus:g} GPUs, which no node has; "
                f"the cluster's nodes: {has or 'none'}"
            )

    def kinds(self) -> dict[str, float]:
        """By the nodes' labels; where some have one, the others get no run."""
        nodes = [node for node in self._nodes() if self._fit(node)]
        keys = (KIND, GPU_KIND) if self._wanted.gpus else (KIND,)
        self._label = next((key for key in keys if any(key in node["Labels"] for node in nodes)), KIND)
        kinds: Counter[str] = Counter()
        for node in nodes:
            if self._label in node["Labels"]:
                kinds[node["Labels"][self._label]] += self._fit(node)
        return dict(kinds)

    def at_once(self) -> int:
        """Two for each that fits the cluster of the moment: it may grow, and no node waits for its next run."""
        if time.monotonic() >= self._looked:
            self._slots = sum(map(self._fit, self._nodes()))
            self._looked = time.monotonic() + LOOK_SECONDS
        return min(2 * max(self._slots, 1), self._wanted.jobs or 2**31)

    def begin(self, work: Work, job: Job) -> Any:
        """Submits the task."""
        imports = [
            str(Path(name).expanduser().resolve()) if name.endswith(".py") else name for name in job.spec["imports"]
        ]
        remote = self._remote.options(label_selector={self._label: job.kind}) if job.kind else self._remote
        handle = remote.remote(
            work, replace(job, spec={**job.spec, "imports": imports}), self._wanted.cpus, self._board
        )
        self._indices[handle] = job.index
        return handle

    def ended(self, handles: list[Any]) -> Iterable[Any]:
        """Those that have ended."""
        ready, _ = self._ray.wait(handles, num_returns=1, timeout=POLL_SECONDS)
        more, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0) if ready else ([], None)
        return more

    def outcome(self, handle: Any) -> Outcome:
        """What `work` returned."""
        del self._indices[handle]
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, ValueError | OSError) else error) from None
        except self._ray.exceptions.RayError as error:
            raise LostRunError(f"lost {RETRIES + 1} times: {' '.join(str(error).split())[:200]}") from None

    def running(self) -> dict[int, tuple[str, dict[str, Any] | None]]:
        """As the board has it, at most some seconds ago."""
        if time.monotonic() >= self._seen[0]:
            rows = self._seen[1]
            with contextlib.suppress(self._ray.exceptions.RayError):  # its node is gone, and it begins again
                rows = self._ray.get(self._board.read.remote(list(self._indices.values())), timeout=POLL_SECONDS)
            self._seen = (time.monotonic() + TELL_SECONDS, rows)
        begun = set(self._indices.values())
        return {index: row for index, row in self._seen[1].items() if index in begun}

    def close(self) -> None:
        """Ends the tasks that are at work, and the connection."""
        for handle in self._indices:
            self._ray.cancel(handle, force=True)
        if self._connected:
            self._ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    host, _, port = (address or "").rpartition(":")
    if address not in (None, "auto"):
        if not host or not port.isdecimal():
            raise ValueError(f"address is {address!r}; allowed: auto, or HOST:PORT of the cluster's head")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ValueError(f"address is {address!r}, and no Ray cluster answers there ({error})") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"no Ray cluster at {address or 'this machine'} could be joined ({reason})") from None


def make(wanted: Wanted) -> RayEngine:
    """The engine."""
    return RayEngine(wanted)
