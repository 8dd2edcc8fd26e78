"""The local Hub as a test has it: a server in a thread, to ask, disturb and look into; and processes that use it."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from ..model.isolated import PREAMBLE
from .server import Repository, Store, listing, make_app

ROOT = Path(__file__).parents[2]
# `isolated` hides the package; a process that may import it drops that, and keeps the guard of the network.
WITH_PACKAGE = f"""
sys.meta_path = [finder for finder in sys.meta_path if not isinstance(finder, Absent)]
sys.path.insert(0, {str(ROOT)!r})
"""

ANSWER_SECONDS = 90
# Orders and answers have streams of their own: what the code prints goes to standard error, and a question it asks finds no answer.
ANSWER = """
import json, os, traceback
orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
names = {}
for line in orders:
    order = json.loads(line)
    names.update(order["values"], result=None)
    try:
        exec(order["code"], names)
        answer = {"error": None, "result": names["result"]}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


class Hub:
    """A server on this machine.

    Args:
        folder: for the contents of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        listener = socket.create_server(("127.0.0.1", 0))
        # asyncio sets this only where the socket names its protocol. Without it every body waits 40 ms for the client's ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(make_app(self.store), log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(timeout=30)

    def repository(self, repo: str, kind: str = "models") -> Repository:
        """A repository, to look into."""
        return self.store.repositories[kind, repo]

    def state(self, repo: str, kind: str = "datasets") -> tuple[str, list[dict[str, Any]]]:
        """The commit of the main branch and every file's path, size and content ids."""
        repository = self.repository(repo, kind)
        return repository.at("main"), listing(repository.commits[repository.at("main")])

    def fail(self, point: str, *, after: int = 0, status: int) -> None:
        """Order one failure at a point of the server (put, commit) once it was passed `after` times."""
        self.store.failures[point] = after, status

    def pause(self, point: str) -> None:
        """Order that the next request that comes to a point (put, with its first part; commit) waits there."""
        self.store.pauses.add(point)

    def wait_for(self, reached: Any) -> None:
        """Return once `reached(store)` is true."""
        deadline = time.monotonic() + 30
        while not reached(self.store):
            assert time.monotonic() < deadline, "the server is not there yet"
            time.sleep(0.02)

    def go_on(self, point: str) -> None:
        """Let the request that waits at the point go on."""
        self.store.waiting.remove(point)

    def client(self, home: Path, *, package: bool) -> "Client":
        """A fresh Python process for which this server is the Hub.

        Args:
            home: its HF_HOME; a fresh folder is a machine that has loaded nothing yet.
            package: whether it can import `hf_semfocus`.
        """
        return Client(self.url, home, package)


class Client:
    """A Python process that runs what it is given, piece by piece, and reaches nothing but the local Hub.

    Args:
        url: the Hub's endpoint.
        home: its HF_HOME and working directory.
        package: whether it can import `hf_semfocus`.
    """

    def __init__(self, url: str, home: Path, package: bool):
        # Settings of the Hub's client are read when it is first imported, so they must stand in the environment.
        dropped = ("HF_", "HUGGING", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        environment |= {
            "HF_ENDPOINT": url,
            "HF_HOME": str(home),
            "HF_TOKEN": "hf_local",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "NO_PROXY": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        home.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + (WITH_PACKAGE if package else "") + ANSWER],
            cwd=home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=30)

    def run(self, code: str, **values: Any) -> Any:
        """What `code` leaves in the name `result`; names are kept from call to call.

        Args:
            code: statements.
            values: names set before it runs.

        Raises:
            ClientError: the code raised.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        watchdog = threading.Timer(ANSWER_SECONDS, self.process.kill)
        watchdog.start()
        try:
            print(json.dumps({"code": textwrap.dedent(code), "values": values}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, "the process ended, or took too long"
        answer = json.loads(line)
        if answer["error"] is not None:
            raise ClientError(answer["error"])
        return answer["result"]


class ClientError(Exception):
    """The traceback of a client's exception."""
