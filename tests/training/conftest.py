"""A run small enough to be trained many times: one block of width 16 on 200 rows."""

import pytest

from hf_semfocus.training.spec import RunSpec


@pytest.fixture
def tiny():
    """Makes a tiny specification; keyword arguments go to `RunSpec`, `training` ones are merged."""

    def make(training=None, model=None, **kwargs) -> RunSpec:
        values = {
            "task": "even_pairs",
            "mask": "topk:3",
            "length": 12,
            "train_size": 200,
            "validation_size": 60,
            "test_size": 100,
            "model": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, **(model or {})},
            "training": {"epochs": 3, "batch_size": 50, "stop_early": False, **(training or {})},
        }
        return RunSpec.from_dict({**values, **kwargs})

    return make
