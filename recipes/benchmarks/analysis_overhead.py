"""What recording the theory's quantities each epoch (`--analysis`) costs of training.

python recipes/benchmarks/analysis_overhead.py > recipes/results/analysis_overhead.txt   # about ten minutes on one core
python recipes/benchmarks/analysis_overhead.py --size 20x3x2000 --masks topk:5 --rounds 2

Rounds alternate: some epochs of `train_run` (what `semfocus train` calls) without recording, then as many with it, each in another order
than the round before. Times are of the processor, so that waiting for other jobs does not count; medians over epochs. What recording
takes is clocked around its calls and set beside the training steps of the same epoch, evaluation left out: the goal is under 10 %. The
ratio of whole epochs holds whatever that would miss, and all that other jobs do to the caches. The first size is the paper's, the
others are reduced.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.training.analysis_callback import EpochProbe
from hf_semfocus.training.recorder import EpochRecorder
from hf_semfocus.training.run import train_run

GOAL = 0.10
SIZES = ("40x5x5000", "20x3x5000", "20x3x2000")


@contextmanager
def timed_epochs() -> Iterator[list[dict[str, float]]]:
    """Processor seconds of each epoch of the runs made within: ``whole``, ``steps`` (training alone) and ``recording``."""
    epochs: list[dict[str, float]] = []
    now = time.process_time
    at = {"begin": 0.0, "steps": 0.0, "recording": 0.0}

    def recording(plain: Callable) -> Callable:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = now()
            result = plain(*args, **kwargs)
            at["recording"] += now() - start
            return result

        return timed

    def begin(*args: Any, plain: Callable = EpochRecorder.on_epoch_begin, **kwargs: Any) -> Any:
        at.update(begin=now(), recording=0.0)
        result = plain(*args, **kwargs)
        at["steps"] = now()
        return result

    def end(*args: Any, plain: Callable = EpochRecorder.on_epoch_end, **kwargs: Any) -> Any:
        steps = now() - at["steps"]
        result = plain(*args, **kwargs)
        epochs.append({"whole": now() - at["begin"], "steps": steps, "recording": at["recording"]})
        return result

    probe: Any = {name: recording(getattr(EpochProbe, name)) for name in ("epoch_begins", "measured")}
    with patch.multiple(EpochProbe, **probe), patch.multiple(EpochRecorder, on_epoch_begin=begin, on_epoch_end=end):
        yield epochs


def epochs_of(spec: RunSpec) -> list[dict[str, float]]:
    """The epochs of one run but the first."""
    with tempfile.TemporaryDirectory() as folder, timed_epochs() as epochs:
        train_run(spec, folder)
    return epochs[1:]


def measured(spec: RunSpec, rounds: int) -> dict[str, float]:
    """Medians over the epochs of all rounds, plain and with recording."""
    plain, recording = spec, replace(spec, training=replace(spec.training, analysis_every=1))
    epochs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(rounds):
        for records in (False, True) if number % 2 == 0 else (True, False):
            epochs[records] += epochs_of(recording if records else plain)
            print(f"{spec.mask}, round {number + 1}: {epochs[records][-1]}", file=sys.stderr, flush=True)

    def middle(records: bool, name: str) -> float:
        return statistics.median(epoch[name] for epoch in epochs[records])

    shares = [epoch["recording"] / epoch["steps"] for epoch in epochs[True]]
    return {
        "plain": middle(False, "whole"),
        "with": middle(True, "whole"),
        "steps": middle(True, "steps"),
        "recording": middle(True, "recording"),
        "share": statistics.median(shares),
        "largest": max(shares),
        "epochs": len(shares),
    }


def line(spec: RunSpec, result: dict[str, float]) -> str:
    """A result in words, the goal with it."""
    verdict = "met" if result["share"] < GOAL else "missed"
    return (
        f"{spec.task}, length {spec.length}, {spec.model['num_hidden_layers']} blocks, {spec.train_size} rows, {spec.mask}: "
        f"recording {result['recording']:.3f} s an epoch, {100 * result['share']:.1f} % of {result['steps']:.2f} s of training steps "
        f"(median of {result['epochs']} epochs; largest {100 * result['largest']:.1f} %; goal under {GOAL:.0%}: {verdict}); whole epochs "
        f"{result['with']:.2f} s with it, {result['plain']:.2f} s without: {result['with'] / result['plain']:.3f} ×"
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=list(SIZES), help="LENGTHxBLOCKSxROWS, several as arguments")
    parser.add_argument("--masks", nargs="+", default=["full", "topk:5"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs a round")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"$ python recipes/benchmarks/analysis_overhead.py {' '.join(arguments)}".rstrip())
    print(
        f"Processor seconds, {options.threads} thread(s), {options.rounds} rounds in alternating order; recorded each epoch."
    )
    for size, mask in itertools.product(options.size, options.masks):
        length, layers, rows = map(int, size.split("x"))
        spec = RunSpec.from_dict(
            {
                "task": "even_pairs",
                "mask": mask,
                "length": length,
                "train_size": rows,
                "model": {"num_hidden_layers": layers},
                "training": {"epochs": options.epochs + 1, "stop_early": False},
            }
        )
        print(line(spec, measured(spec, options.rounds)), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
