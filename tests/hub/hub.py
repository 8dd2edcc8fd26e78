"""The local Hub as a test holds it, a process to start, ask, disturb and start again; and processes that use it."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from ..model.isolated import PREAMBLE

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
    """A server process over a folder.

    Args:
        root: the server's folder, which outlives the process.
    """

    def __init__(self, root: Path):
        self.root = root
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start the process, after the first time on the same port and folder."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hub.server", str(self.root), str(self.port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the local Hub did not start"
        self.port = int(line)

    def stop(self) -> None:
        """End the process."""
        self.process.communicate(timeout=30)

    def restart_after_crash(self) -> None:
        """Start again after the process ended by itself."""
        assert self.process.wait(timeout=30) == 1
        self.process.communicate()
        self.start()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPResponse, bytes]:
        """One request; bytes are sent as they are, anything else as JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if body is None or isinstance(body, bytes) else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, content, kind | (headers or {}))
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def ask_json(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a request that succeeds."""
        response, content = self.ask(method, path, body)
        assert response.status == 200, content
        return json.loads(content)

    def state(self, repo: str, kind: str = "datasets", revision: str = "main") -> tuple[str, list[dict[str, Any]]]:
        """The commit of a branch and every file's path, size and content ids."""
        sha = self.ask_json("GET", f"/api/{kind}/{repo}/revision/{revision}")["sha"]
        return sha, self.ask_json("GET", f"/api/{kind}/{repo}/tree/{sha}?recursive=true")

    def content(self, repo: str, path: str) -> bytes:
        """A file of a data set's main branch."""
        response, content = self.ask("GET", f"/datasets/{repo}/resolve/main/{path}")
        assert response.status == 200
        return content

    def fail(self, point: str, *, after: int = 0, status: int | None) -> None:
        """Order one failure at a point of the server (batch, put, verify, commit, publish); without a status it dies there."""
        self.ask_json("POST", "/faults", {"point": point, "after": after, "status": status})

    def pause(self, point: str) -> None:
        """Order that the next request that comes to a point (put, after its first chunk; commit) waits there."""
        self.ask_json("POST", f"/pauses/{point}")

    def wait_for_pause(self, point: str) -> None:
        """Return once a request waits at the point."""
        deadline = time.monotonic() + 30
        while not self.ask_json("GET", f"/pauses/{point}"):
            assert time.monotonic() < deadline, f"nobody came to {point}"
            time.sleep(0.02)

    def go_on(self, point: str) -> None:
        """Let the request that waits at the point go on."""
        self.ask_json("DELETE", f"/pauses/{point}")

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
