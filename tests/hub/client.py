"""Fresh Python processes for which the local Hub is the Hub: what users have on other machines."""

import contextlib
import multiprocessing
import os
import sys
import textwrap
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from ..model.isolated import PREAMBLE

ANSWER_SECONDS = 300
NAMES: dict[str, Any] = {}


class ClientError(Exception):
    """The traceback of a client's exception."""


def _begin(home: Path, package: bool) -> None:
    exec(PREAMBLE, {})
    if package:
        del sys.meta_path[0]  # what hides it; the guard of the network stays
    os.chdir(home)


def _run(code: str, values: dict[str, Any]) -> Any:
    NAMES.update(values, result=None)
    try:
        exec(code, NAMES)
    except BaseException:
        raise ClientError(traceback.format_exc()) from None
    return NAMES["result"]


class Client:
    """Runs what it is given, piece by piece, and reaches nothing but the local Hub; names are kept from piece to piece."""

    def __init__(self, pool: ProcessPoolExecutor):
        self.pool = pool

    def run(self, code: str, **values: Any) -> Any:
        """What `code` leaves in the name `result`, with `values` set before it runs.

        Raises:
            ClientError: the code raised.
        """
        return self.pool.submit(_run, textwrap.dedent(code), values).result(ANSWER_SECONDS)


@contextlib.contextmanager
def client(url: str, home: Path, *, package: bool):
    """A client of the Hub at `url`; `home`: its HF_HOME and working directory, fresh for a fresh machine; `package`: whether it can
    import `hf_semfocus`."""
    home.mkdir(parents=True, exist_ok=True)
    # Settings of the Hub's client are read when it is first imported, so they must stand in the environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_TOKEN": "hf_local", "NO_PROXY": "127.0.0.1"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (home, package)) as pool:
        with mock.patch.dict(os.environ, environment, clear=True):
            pool.submit(os.getpid)  # starts the process
        yield Client(pool)
