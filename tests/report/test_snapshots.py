"""The slider's data: what the files hold, within the page's size."""

import base64

import numpy as np
import pytest

from hf_semfocus.report import snapshots as module
from hf_semfocus.report.html import render
from tests.report.synthetic import write_snapshots


@pytest.fixture
def taken(summary_of, tmp_path):
    summary = summary_of("quickstart")
    return summary, tmp_path, write_snapshots(tmp_path, summary)


def test_every_weight_is_there(taken):
    summary, folder, weights = taken
    (found,) = module.snapshots(summary, folder)
    assert (found["task"], found["seed"]) == ("even_pairs", 0)
    assert [one["mask"] for one in found["masks"]] == ["full", "topk:5"]
    for one in found["masks"]:
        assert tuple(one["shape"]) == weights[one["mask"], 0].shape
        for epoch, text in one["epochs"].items():
            read = np.frombuffer(base64.b64decode(text), np.uint8).reshape(one["shape"])
            np.testing.assert_allclose(read / 255, weights[one["mask"], epoch], atol=1 / 255)
        assert one["accuracy"][1] == next(r for r in summary.runs if r.mask == one["mask"]).history[0].train_accuracy
    assert "Attention while it learns" in render(summary, [found])
    assert "Attention while it learns" not in render(summary)


def test_what_is_too_much_is_left_out(taken, monkeypatch):
    summary, folder, _ = taken
    monkeypatch.setattr(module, "MOST_BYTES", 2 * 6 * 6 * 5)  # a row of full attention at three epochs, and no more
    (found,) = module.snapshots(summary, folder)
    assert found["masks"][0]["shape"][0] == len(found["tokens"]) == 1
    assert [one["mask"] for one in found["masks"]] == ["full"]
