"""Every test runs without a network, on one torch thread, with a data cache of its own."""

import os
import socket

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def datasets_cache(tmp_path_factory):
    """The `datasets` cache of the session: nothing is read from, or left in, the user's."""
    import datasets

    folder = tmp_path_factory.mktemp("datasets-cache")
    os.environ["HF_DATASETS_CACHE"] = str(folder)
    datasets.config.HF_DATASETS_CACHE = folder
    return folder


@pytest.fixture(scope="session", autouse=True)
def no_network():
    """Non-loopback connections raise: nothing may need the Hub."""
    connect = socket.socket.connect

    def local_only(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test reached for the network: {address}")
        return connect(self, address)

    socket.socket.connect = local_only
    yield
    socket.socket.connect = connect


@pytest.fixture
def tiny():
    """Makes a specification that trains in a second; keyword arguments go to `RunSpec`, `training` and `model` are merged."""
    from hf_semfocus.experiments.spec import RunSpec
    from tests.small import TINY

    def make(training=None, model=None, **kwargs):
        parts = {"model": {**TINY["model"], **(model or {})}, "training": {**TINY["training"], **(training or {})}}
        return RunSpec.from_dict({"task": "even_pairs", "mask": "topk:3", **TINY, **parts, **kwargs})

    return make


@pytest.fixture
def no_workers(monkeypatch):
    """Comparisons train in this process."""
    from tests.small import InProcess

    for place in ("compare", "engines"):
        monkeypatch.setattr(f"hf_semfocus.comparison.{place}.make_engine", lambda *_: InProcess())
