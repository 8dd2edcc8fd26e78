"""Training steps of `semfocus train` against the bare matrix products of their forward and backward passes.

python recipes/benchmarks/step_bound.py [--masks full topk:5 banded:5] [--length 40 --layers 5 --epochs 5 --threads 1]

Each mask is a real run (`train_run`, what `semfocus train` calls). Between its epochs the same process multiplies matrices of the
same shapes as often as the epoch did: per block the six linear layers and the two products of attention, each with its two
products backward, nothing else. A step's time is the epoch's training time over its steps; evaluation and the rest of an epoch
(checkpoint, history) are apart. Printed: medians over epochs, and the median of the ratios of neighbours. The goal is at most 1.5.

`--allocator` compares the steps' page faults with and without the allocator setting that runs make, in processes of their own.
`--profile` says where a step's time goes: the share of each kind of operation in what torch's profiler counts of 20 steps
of a plain loop with the run's model, batches, clipping and SGD.
"""

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import datasets
import torch
from transformers.utils import logging

from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.training.run import train_run


def bare_products(batch: int, length: int, width: int, layers: int) -> Callable[[], None]:
    """One step's matrix products and nothing else, for a head as wide as the model and an MLP as wide."""
    tokens = batch * length
    rows, grads = torch.randn(tokens, width), torch.randn(tokens, width)
    weight = torch.randn(width, width)
    query, key, attention = (
        torch.randn(batch, length, width),
        torch.randn(batch, length, width),
        torch.rand(batch, length, length),
    )

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


@dataclasses.dataclass
class Epoch:
    """Seconds of one epoch's parts, and of as many steps of bare products right after it."""

    training: float
    rest: float
    products: float


def measure(spec: RunSpec, steps: int, products: Callable[[], None]) -> list[Epoch]:
    """All epochs of a run but the first."""
    epochs: list[Epoch] = []
    before = {"train_seconds": 0.0, "seconds": 0.0}

    def at_epoch_end(entry) -> None:
        nonlocal before
        start = time.perf_counter()
        for _ in range(steps):
            products()
        bare = time.perf_counter() - start
        training = entry["train_seconds"] - before["train_seconds"]
        whole = entry["seconds"] - before["seconds"]
        epochs.append(Epoch(training, whole - training, bare))
        before = entry

    with tempfile.TemporaryDirectory() as folder:
        train_run(spec, folder, on_epoch=at_epoch_end)
    return epochs[1:]


def compare_allocators(arguments: argparse.Namespace) -> None:
    """Page faults and seconds of plain training steps, each setting in a fresh process, in turn."""
    code = (
        "import resource, time, torch, sys\n"
        "from hf_semfocus import SemFocusConfig, SemFocusModel\n"
        "from hf_semfocus.training.environment import keep_freed_memory\n"
        "torch.set_num_threads(1)\n"
        "keep, mask, length, layers = sys.argv[1] == 'kept', sys.argv[2], int(sys.argv[3]), int(sys.argv[4])\n"
        "if keep: assert keep_freed_memory(), 'this C library has no such setting'\n"
        "model = SemFocusModel(SemFocusConfig(mask=mask, num_hidden_layers=layers)).train()\n"
        "ids = torch.randint(1, 8, (100, length))\n"
        "def step(): model(ids).last_hidden_state.sum().backward()\n"
        "for _ in range(5): step()\n"
        "before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()\n"
        "for _ in range(30): step()\n"
        "after = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print((time.perf_counter() - start) / 30, (after.ru_minflt - before.ru_minflt) / 30)\n"
    )
    for mask in arguments.masks:
        found: dict[str, list[tuple[float, float]]] = {"kept": [], "handed back": []}
        for _ in range(3):
            for setting, results in found.items():
                command = [sys.executable, "-c", code, setting, mask, str(arguments.length), str(arguments.layers)]
                seconds, faults = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                results.append((float(seconds), float(faults)))
        for setting, results in found.items():
            seconds, faults = (statistics.median(column) for column in zip(*results, strict=True))
            print(f"{mask:10s} freed memory {setting:12s} {seconds * 1e3:7.2f} ms a step, {faults:7.0f} page faults")


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


def profile_steps(spec: RunSpec, steps: int = 20) -> None:
    """Prints the shares of a training step's operations, self time on the CPU, largest first."""
    from torch.profiler import ProfilerActivity, profile

    from hf_semfocus.data import build_tokenizer, load_task
    from hf_semfocus.training.environment import keep_freed_memory
    from hf_semfocus.training.rows import TensorRows
    from hf_semfocus.training.setup import build_model

    keep_freed_memory()
    tokenizer = build_tokenizer(spec.task)
    rows = TensorRows(load_task(spec.task, **spec.data_options())["train"], tokenizer.pad_token_id)
    model = build_model(spec, tokenizer, rows.input_ids.shape[1]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.training.learning_rate)
    size = spec.training.batch_size

    def step(number: int) -> None:
        model(**rows.batch(slice(number * size, (number + 1) * size))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for number in range(5):
        step(number)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for number in range(steps):
            step(number)
    spent: dict[str, float] = {}
    for event in seen.key_averages():
        kind = next(
            (kind for kind, names in KINDS.items() if event.key.startswith(names)), "other (views, autograd, Python)"
        )
        spent[kind] = spent.get(kind, 0.0) + event.self_cpu_time_total
    whole = sum(spent.values())
    told = ", ".join(f"{kind} {time / whole:.0%}" for kind, time in sorted(spent.items(), key=lambda item: -item[1]))
    print(f"{spec.mask:18s} {told}", flush=True)


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", nargs="+", default=["full", "topk:5", "banded:5"])
    parser.add_argument("--task", default="even_pairs")
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each mask")
    parser.add_argument("--threads", type=int, default=1)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--allocator", action="store_true", help="compare allocator settings instead")
    other.add_argument("--profile", action="store_true", help="the shares of a step's operations instead")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    torch.set_num_threads(arguments.threads)
    if arguments.allocator:
        compare_allocators(arguments)
        return
    steps_of, told = (
        "steps of semfocus train",
        f"medians of {arguments.epochs} epochs, each beside the bare products of its steps",
    )
    if arguments.profile:
        steps_of, told = (
            "steps of a plain loop with the same model and batches",
            "shares of the time by torch's profiler",
        )
    print(
        f"{steps_of} on {arguments.task}: batch 100, length {arguments.length}, {arguments.layers} blocks, d 64, "
        f"{arguments.threads} thread(s), {told}"
    )
    for mask in arguments.masks:
        spec = RunSpec.from_dict(
            {
                "task": arguments.task,
                "mask": mask,
                "length": arguments.length,
                "model": {"num_hidden_layers": arguments.layers},
                "training": {"epochs": arguments.epochs + 1, "stop_early": False},
            }
        )
        if arguments.profile:
            profile_steps(spec)
            continue
        steps = -(-spec.train_size // spec.training.batch_size)
        products = bare_products(spec.training.batch_size, arguments.length, 64, arguments.layers)
        epochs = measure(spec, steps, products)
        step, bare, rest = (
            statistics.median(getattr(epoch, part) for epoch in epochs) for part in ("training", "products", "rest")
        )
        ratios = sorted(epoch.training / epoch.products for epoch in epochs)
        print(
            f"{mask:18s} {step / steps * 1e3:7.2f} ms a step, bare products {bare / steps * 1e3:6.2f} ms: "
            f"{statistics.median(ratios):.2f} × ({ratios[0]:.2f}–{ratios[-1]:.2f}); "
            f"evaluation, checkpoint and history {rest:.2f} s an epoch",
            flush=True,
        )


if __name__ == "__main__":
    main()
