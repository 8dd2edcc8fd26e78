"""A training step, and an epoch of `semfocus train`, beside the same at an earlier commit: interleaved in one run.

    OMP_NUM_THREADS=1 python recipes/benchmarks/step_before.py [--commit bcde300] [--rounds 12] [--epochs 2]

The earlier package is taken out of git into a temporary folder. Two processes, each with its package and with what its `compare` sets
in a worker's environment, take turns: a few steps of each mask and batch a round. The model is the nearest to the paper's recipe that
both have: 5 pre-norm blocks, sinusoids, dropout 0.01 on embeddings, weights and what blocks add. The epoch is one
of even_pairs with all its evaluations, of the paper's recipe now and of its nearest before; `step_bound.py` has steps beside their bare
matrix products, and epochs beside a plain loop.
"""

import argparse
import contextlib
import importlib
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

LAYERS, LENGTH = 5, 40
ROOT = Path(__file__).resolve().parents[2]


def worker() -> None:
    """Answers each line of standard input, a JSON list, with seconds: ["steps", mask, batch, count] or ["epochs", mask, count]."""
    import torch

    torch.set_num_threads(1)
    from hf_semfocus.training.environment import keep_freed_memory

    keep_freed_memory()
    with contextlib.suppress(ImportError):  # not in the earlier package
        from hf_semfocus.products import use_fast_products

        use_fast_products()
    made: dict[tuple[str, int], Callable[[], None]] = {}
    for line in sys.stdin:
        what, mask, *rest = json.loads(line)
        if what == "steps":
            batch, count = rest
            if (mask, batch) not in made:
                made[mask, batch] = make_step(mask, batch)
                for _ in range(3):
                    made[mask, batch]()
            seconds = []
            for _ in range(count):
                start = time.perf_counter()
                made[mask, batch]()
                seconds.append(time.perf_counter() - start)
        else:
            seconds = whole_epochs(mask, *rest)
        print(json.dumps(seconds), flush=True)


def make_step(mask: str, batch: int) -> Callable[[], None]:
    """One step of clipped SGD on fixed rows."""
    import torch

    from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification

    torch.manual_seed(0)
    config = SemFocusConfig(
        vocab_size=8, mask=mask, num_hidden_layers=LAYERS, norm_position="pre", hidden_dropout=0.01,
        attention_dropout=0.01, position_embedding_type="sinusoidal", max_position_embeddings=64,
    )  # fmt: skip
    model = SemFocusForSequenceClassification(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, labels = torch.randint(1, 8, (batch, LENGTH)), torch.randint(0, 2, (batch,))

    def step() -> None:
        model(ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    return step


def module(now: str, before: str):
    """A module of the package by its name of now, or by the one it had."""
    try:
        return importlib.import_module(f"hf_semfocus.{now}")
    except ModuleNotFoundError:
        return importlib.import_module(f"hf_semfocus.{before}")


def nearest_recipe(mask: str, epochs: int) -> dict:
    """even_pairs as close to the paper's recipe as the package has it, without an early end."""
    presets = module("experiments.presets", "training.presets")
    training = {
        "learning_rate": 0.1, "lr_decay": 0.9995, "batch_size": 25, "max_grad_norm": 0.5, "epochs": epochs, "stop_early": False,
    }  # fmt: skip
    values = {"task": "even_pairs", "mask": mask, "length": LENGTH, "training": training}
    if "paper-nnch" in presets.PRESETS:
        experiment = presets.preset("paper-nnch")
        defaults = experiment.defaults
        return {**values, "model": defaults["model"], "training": {**defaults["training"], **training}}
    model = {
        "num_hidden_layers": LAYERS, "norm_position": "pre", "hidden_dropout": 0.01, "attention_dropout": 0.01,
        "position_embedding_type": "sinusoidal",
    }  # fmt: skip
    return {**values, "model": model}


def whole_epochs(mask: str, count: int) -> list[float]:
    """Seconds of epochs of a run, checkpoint and evaluations included, from the second on."""
    RunSpec = module("experiments.spec", "training.spec").RunSpec
    run = importlib.import_module("hf_semfocus.training.run")
    train_run = getattr(run, "train_run", None) or run.run_unit  # as it was called before
    spec = RunSpec.from_dict(nearest_recipe(mask, count + 1))
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train_run(spec, folder, on_epoch=lambda entry: ends.append(time.perf_counter()))
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


@contextlib.contextmanager
def package_of(commit: str) -> Iterator[Path]:
    """The package as it was at `commit`, in a temporary folder."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit, "hf_semfocus"], capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
            packed.extractall(folder, filter="data")
        yield Path(folder)


class Other:
    """A worker process with the package in `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment, "PYTHONPATH": str(folder)}, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, *question) -> list[float]:
        """Its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended at {question}")
        return json.loads(line)


def quartiles(ratios: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="bcde300", help="the earlier commit (default: before the paper's recipe)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=2, help="epochs a round of three rounds; 0: none")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker()
        return
    sys.path.insert(0, str(ROOT))
    with package_of(options.commit) as folder:
        from hf_semfocus.comparison.engines.base import worker_environment

        before, now = Other(folder, {"OMP_NUM_THREADS": "1"}), Other(ROOT, worker_environment(1))
        cases = [(mask, batch) for batch in (25, 100) for mask in ("full", "topk:5", "banded:5")]
        seconds: dict = {case: ([], []) for case in cases}
        for _ in range(options.rounds):
            for case in cases:
                for place, other in enumerate((before, now)):
                    seconds[case][place].append(statistics.median(other.ask("steps", *case, 5)))
        print(f"a step, one thread, medians of {options.rounds} rounds; before: {options.commit}")
        for (mask, batch), (old, new) in seconds.items():
            ratios = [a / b for a, b in zip(old, new, strict=True)]
            print(
                f"{mask:9s} batch {batch:3d}: before {statistics.median(old) * 1e3:6.1f} ms, now {statistics.median(new) * 1e3:6.1f} ms, "
                f"{quartiles(ratios)} x faster"
            )
        if options.epochs:
            epochs: dict[str, list[float]] = {"before": [], "now": []}
            for _ in range(3):
                epochs["before"] += before.ask("epochs", "topk:5", options.epochs)
                epochs["now"] += now.ask("epochs", "topk:5", options.epochs)
            medians = ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in epochs.items())
            ratios = [a / b for a, b in zip(epochs["before"], epochs["now"], strict=True)]
            print(
                f"an epoch of even_pairs, topk:5, batch 25, with its evaluations: {medians}; {quartiles(ratios)} x faster"
            )


if __name__ == "__main__":
    main()
