"""The loop by hand in recipes/: it learns, what it saves is a whole checkpoint, and two processes do what one does."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import pipeline

from hf_semfocus.data import load_task

RECIPES = Path(__file__).parents[2] / "recipes"
SCRIPT = RECIPES / "accelerator_loop.py"


def test_it_learns_and_tells_the_accuracy_of_the_model_that_it_saves(tmp_path, capsys):
    options = {"length": 14, "train_size": 1000, "test_size": 200}
    accuracy = runpy.run_path(str(SCRIPT))["train"]("even_pairs", "topk:5", str(tmp_path), epochs=6, **options)
    told = re.findall(r"epoch (\d): held-out accuracy ([\d.]+)", capsys.readouterr().out)
    assert [number for number, _ in told] == list("123456")
    assert told[-1][1] == f"{accuracy:.3f}"
    assert accuracy > 0.9
    rows = load_task("even_pairs", **options)["test"]
    answers = pipeline("text-classification", model=str(tmp_path))(list(rows["text"]))
    right = [answer["label"] == target for answer, target in zip(answers, rows["target"], strict=True)]
    assert sum(right) / len(right) == pytest.approx(accuracy)


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_train_the_same_model_as_one(tmp_path, capsys):
    sizes = {"epochs": 2, "length": 20, "train_size": 200, "test_size": 101}
    runpy.run_path(str(SCRIPT))["train"]("reverse_string", "banded:5", str(tmp_path / "one"), **sizes)
    told = re.findall("epoch .*", capsys.readouterr().out)
    launch = ["accelerate.commands.launch", "--config_file", str(RECIPES / "accelerate" / "two.yaml"), str(SCRIPT)]
    options = [word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", str(size))]
    done = subprocess.run(
        [sys.executable, "-m", *launch, "reverse_string", "banded:5", str(tmp_path / "two"), *options],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(told) == 2
    assert re.findall("epoch .*", done.stdout) == told  # each line once, and each held-out row counted once
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        # A key bias has no gradient but rounding, from which AdamW makes steps of full size.
        assert torch.allclose(tensor, two[name], atol=1e-4) or name.endswith("key.bias"), name
