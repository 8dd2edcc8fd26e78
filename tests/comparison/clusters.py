"""What tests of engines and storage share: a tiny experiment, a Ray cluster of two nodes, an S3 server, and what was trained."""

import contextlib
import os
from pathlib import Path
from unittest import mock

from hf_semfocus.comparison.compare import compare
from hf_semfocus.comparison.engines import Wanted, make_engine
from hf_semfocus.comparison.storage import local_copy
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.files import read_json, read_json_lines

ROOT = Path(__file__).parents[2]
TINY = {
    "length": 12,
    "train_size": 200,
    "validation_size": 60,
    "test_size": 100,
    "model": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "hidden_dropout": 0.1},
    "training": {"epochs": 3, "batch_size": 50, "stop_early": False},
}
# All on loopback, and nothing said to anybody.
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "PYTHONPATH": str(ROOT),
}
S3 = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def tiny(epochs=3, masks=("full", "topk:3"), seeds=(0,)):
    training = {**TINY["training"], "epochs": epochs}
    return Experiment("tiny", {"even_pairs": {}}, tuple(masks), tuple(seeds), {**TINY, "training": training})


@contextlib.contextmanager
def ray_cluster(*nodes):
    """A cluster of these nodes (two CPUs each, if nothing else is asked for), of which the first is its head."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    address = {"node_ip_address": "127.0.0.1"}
    # Ray takes another address than loopback wherever it can.
    here = mock.patch.object(services, "get_node_ip_address", return_value="127.0.0.1")
    with mock.patch.dict(os.environ, RAY), here:
        cluster = Cluster()
        try:
            for node in nodes or ({}, {}):
                head = {} if cluster.head_node else {"include_dashboard": False}
                cluster.add_node(**{**address, "num_cpus": 2, **head, **node})
            yield cluster
        finally:
            cluster.shutdown()


@contextlib.contextmanager
def s3_server(port=0):
    """moto's S3 server; gives its URL, and the environment points to it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with mock.patch.dict(os.environ, {**S3, "AWS_ENDPOINT_URL": url}):
        try:
            yield url
        finally:
            server.stop()


def trained(place, asked):
    """Histories and results of a comparison, without what is of a moment or a machine; and that every run has exactly one."""
    folder = local_copy(place, models=False)
    found = {}
    for unit in asked.units():
        run = folder / "runs" / unit.name
        rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in read_json_lines(run / "history.jsonl")]
        result = read_json(run / "result.json")
        for name in ("machine", "versions", "placement"):
            result.pop(name, None)
        found[unit.name] = rows, {k: v for k, v in result.items() if "seconds" not in k}
    assert len(list((folder / "runs").glob("*/*/seed-*"))) == len(found)
    return found


def train_here(asked, folder):
    """The undisturbed comparison: what every other way of training it has to give, bit for bit."""
    compare(asked, folder, engine=make_engine("inline", Wanted()))
    return trained(folder, asked)
