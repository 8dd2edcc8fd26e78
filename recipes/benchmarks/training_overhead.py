"""What `semfocus train` costs over a bare PyTorch loop with the same model, batches and evaluations.

python recipes/benchmarks/training_overhead.py [--length 40 --layers 5 --rounds 3 --epochs 3 --threads 1]

Rounds alternate: a few epochs of `train_run` (what `semfocus train` calls: Trainer, history, stopping rule, a checkpoint an epoch), then
as many of the bare loop. Times are whole epochs, from one epoch's end to the next one's, checkpoint included. Prints the medians and
their ratio; the goal is at most 1.25.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time

import torch

from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.training.accuracy import measure_accuracy
from hf_semfocus.training.rows import TensorRows
from hf_semfocus.training.run import train_run
from hf_semfocus.training.setup import build_model


def whole_epochs(spec: RunSpec) -> list[float]:
    """Seconds of each epoch of a run but the first."""
    ends = []
    with tempfile.TemporaryDirectory() as folder:
        train_run(spec, folder, on_epoch=lambda entry: ends.append(time.perf_counter()))
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def bare_epochs(spec: RunSpec) -> list[float]:
    """The same training as a plain loop, without anything around it."""
    options = spec.training
    data = load_task(spec.task, **spec.data_options())
    tokenizer = build_tokenizer(spec.task)
    train, test = (TensorRows(data[name], tokenizer.pad_token_id) for name in ("train", "test"))
    model = build_model(spec, tokenizer, train.input_ids.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, options.lr_decay)
    ends = []
    for _ in range(options.epochs):
        model.train()
        for index in torch.randperm(len(train)).split(options.batch_size):
            loss = model(**train.batch(index)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        for rows in (train, test):
            measure_accuracy(model, rows, options.eval_batch_size)
        ends.append(time.perf_counter())
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--mask", default="topk:5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs a round")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    spec = RunSpec.from_dict(
        {
            "task": "even_pairs",
            "mask": options.mask,
            "length": options.length,
            "model": {"num_hidden_layers": options.layers},
            "training": {"epochs": options.epochs + 1, "stop_early": False},
        }
    )
    ours, bare = [], []
    for number in range(1, options.rounds + 1):
        ours += whole_epochs(spec)
        bare += bare_epochs(spec)
        print(
            f"round {number}: semfocus train {ours[-1]:.2f} s, bare loop {bare[-1]:.2f} s", file=sys.stderr, flush=True
        )
    ratio = statistics.median(ours) / statistics.median(bare)
    print(
        f"{spec.task}, length {options.length}, {options.layers} blocks, {options.mask}, {options.threads} thread(s): "
        f"an epoch {statistics.median(ours):.2f} s with semfocus train, {statistics.median(bare):.2f} s bare: {ratio:.2f} ×"
    )


if __name__ == "__main__":
    main()
