"""Training of `semfocus train` beside the least that it could cost: bare matrix products, and a plain loop of PyTorch.

python recipes/benchmarks/step_bound.py [--masks full topk:5 banded:5] [--length 40 --layers 5 --epochs 5 --threads 1]

Each mask is a real run (`train_run`: Trainer, history, stopping rule, a checkpoint an epoch). Between its epochs the same process
multiplies matrices of the same shapes as often as the epoch did: per block the six linear layers and the two products of attention,
each with its two products backward, nothing else. A step's time is the epoch's training time over its steps; evaluation and the rest
of an epoch are apart. Goal: at most 1.5. Then the same epochs as a plain loop, which evaluates both splits in full. Goal: at most 1.25.

`--profile` says where a step's time goes: the share of each kind of operation in what torch's profiler counts of 20 plain steps.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import datasets
import torch
from torch.profiler import ProfilerActivity, profile
from transformers.utils import logging

from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.training.accuracy import measure_accuracy
from hf_semfocus.training.environment import keep_freed_memory
from hf_semfocus.training.rows import TensorRows
from hf_semfocus.training.run import train_run
from hf_semfocus.training.setup import build_model

# What an operation of torch belongs to, by the beginning of its name; anything else is "other".
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention, fused (with its products)": ("aten::_scaled_dot_product",),
    "attention: selection, mask and softmax": (
        "aten::_softmax", "aten::maximum", "aten::minimum", "aten::amax", "aten::topk", "aten::ge", "aten::gt", "aten::eq", "aten::where",
        "aten::bitwise", "aten::cat",
    ),
    "layer norms": ("aten::native_layer_norm",),
    "activation": ("aten::threshold_backward", "aten::clamp_min", "aten::relu"),
    "additions and copies": ("aten::add", "aten::copy_", "aten::fill_", "aten::mul", "aten::sum", "aten::div"),
    "optimiser and clipping": ("Optimizer", "aten::_foreach", "aten::linalg_vector_norm", "aten::_fused"),
}  # fmt: skip


def bare_products(batch: int, length: int, width: int, layers: int) -> Callable[[], None]:
    """One step's matrix products and nothing else, for a head as wide as the model and an MLP as wide."""
    rows, grads, weight = (torch.randn(count, width) for count in (batch * length, batch * length, width))
    query, key = torch.randn(2, batch, length, width)
    attention = torch.rand(batch, length, length)

    def step() -> None:
        for _ in range(layers):
            for _ in range(6):  # query, key, value, output, two of the MLP
                torch.mm(rows, weight.t())
                torch.mm(grads, weight)
                torch.mm(grads.t(), rows)
            for _ in range(2):  # forward and backward: scores and weighted sum of values; their four products
                torch.bmm(query, key.transpose(1, 2))
                torch.bmm(attention, query)
            torch.bmm(attention.transpose(1, 2), query)
            torch.bmm(attention.transpose(1, 2), key)

    return step


class PlainLoop:
    """The training of a run with SGD and nothing around it."""

    def __init__(self, spec: RunSpec) -> None:
        self.options, tokenizer = spec.training, build_tokenizer(spec.task)
        data = load_task(spec.task, **spec.data_options())
        self.train, self.test = (TensorRows(data[name], tokenizer.pad_token_id) for name in ("train", "test"))
        self.model = build_model(spec, tokenizer, self.train.input_ids.shape[1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.options.learning_rate)

    def steps(self) -> None:
        """An epoch's."""
        self.model.train()
        for index in torch.randperm(len(self.train)).split(self.options.batch_size):
            self.model(**self.train.batch(index)).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def epochs(self) -> list[float]:
        """Seconds of each epoch but the first, with the evaluation of both splits."""
        ends = []
        for _ in range(self.options.epochs):
            self.steps()
            for rows in (self.train, self.test):
                measure_accuracy(self.model, rows, self.options.eval_batch_size)
            ends.append(time.perf_counter())
        return [later - earlier for earlier, later in itertools.pairwise(ends)]

    def shares(self) -> str:
        """Of an epoch's steps by kinds of operations, self time on the CPU, largest first."""
        keep_freed_memory()
        self.steps()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            self.steps()
        spent: dict[str, float] = {}
        for event in seen.key_averages():
            kinds = (kind for kind, names in KINDS.items() if event.key.startswith(names))
            kind = next(kinds, "other (views, autograd, Python)")
            spent[kind] = spent.get(kind, 0.0) + event.self_cpu_time_total
        largest_first = sorted(spent.items(), key=lambda item: -item[1])
        return ", ".join(f"{kind} {seconds / sum(spent.values()):.0%}" for kind, seconds in largest_first)


def measured(spec: RunSpec) -> str:
    """A mask's line: medians over all epochs but the first."""
    steps = -(-spec.train_size // spec.training.batch_size)
    assert isinstance(spec.length, int)
    products = bare_products(spec.training.batch_size, spec.length, 64, spec.model["num_hidden_layers"])
    entries, bare = [], []

    def at_epoch_end(entry) -> None:
        start = time.perf_counter()
        for _ in range(steps):
            products()
        bare.append((time.perf_counter() - start) / steps)
        entries.append(entry)

    with tempfile.TemporaryDirectory() as folder:
        train_run(spec, folder, on_epoch=at_epoch_end)
    pairs = list(itertools.pairwise(entries))
    training = [(now.train_seconds - before.train_seconds) / steps for before, now in pairs]
    epochs = [now.seconds - before.seconds for before, now in pairs]
    ratios = sorted(step / product for step, product in zip(training, bare[1:], strict=True))
    step, product, epoch, plain = map(statistics.median, (training, bare[1:], epochs, PlainLoop(spec).epochs()))
    return (
        f"{step * 1e3:7.2f} ms a step, bare products {product * 1e3:6.2f} ms: {statistics.median(ratios):.2f} × "
        f"({ratios[0]:.2f}–{ratios[-1]:.2f}); an epoch {epoch:.2f} s, in a plain loop {plain:.2f} s: {epoch / plain:.2f} ×"
    )


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", nargs="+", default=["full", "topk:5", "banded:5"])
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each mask")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="the shares of a step's operations instead")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    torch.set_num_threads(arguments.threads)
    what = "shares of a plain loop's steps" if arguments.profile else f"medians of {arguments.epochs} epochs"
    print(
        f"even_pairs, batch 100, length {arguments.length}, {arguments.layers} blocks, {arguments.threads} thread(s), {what}"
    )
    for mask in arguments.masks:
        spec = RunSpec.from_dict(
            {
                "task": "even_pairs",
                "mask": mask,
                "length": arguments.length,
                "model": {"num_hidden_layers": arguments.layers},
                "training": {"epochs": arguments.epochs + 1, "stop_early": False},
            }
        )
        print(f"{mask:18s} {PlainLoop(spec).shares() if arguments.profile else measured(spec)}", flush=True)


if __name__ == "__main__":
    main()
