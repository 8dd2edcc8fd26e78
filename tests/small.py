"""What many tests share: what trains in a second, the command line, an engine without workers."""

import pytest

from hf_semfocus.cli.main import main
from hf_semfocus.comparison.engines.base import Engine

SIZES = {"length": 12, "train_size": 200, "validation_size": 60, "test_size": 100}
TINY = {
    **SIZES,
    "model": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    "training": {"epochs": 3, "batch_size": 50, "stop_early": False},
}


def run(*arguments):
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code or 0


class InProcess(Engine):
    """Trains in this process: a worker takes seconds to start, and few tests are about workers."""

    in_process = True

    def __init__(self):
        self.made = {}

    def at_once(self):
        return 1

    def begin(self, work, job):
        self.made[job.index] = work(job, 1, None)
        return job.index

    def ended(self, handles):
        return handles

    def outcome(self, handle):
        return self.made.pop(handle)
