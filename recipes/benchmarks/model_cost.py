"""Cost of a training step of the encoder under each mask, against the same encoder with ``full``.

One run measures all masks, interleaved, so that other load on the machine touches all alike. Forward and backward of
``SemFocusModel`` at the paper's NNCH size by default.

    OMP_NUM_THREADS=1 python recipes/benchmarks/model_cost.py --masks full topk:5 banded:5 --rounds 30
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from hf_semfocus import SemFocusConfig, SemFocusModel


def step_of(mask: str, arguments: argparse.Namespace) -> Callable[[], None]:
    """One forward and backward pass of a fresh model with `mask`; all models have the same weights and rows."""
    torch.manual_seed(0)
    config = SemFocusConfig(
        mask=mask,
        hidden_size=arguments.width,
        intermediate_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        attention_form=arguments.form,
        max_position_embeddings=max(1024, arguments.length),
    )
    model = SemFocusModel(config).train()
    input_ids = torch.randint(1, config.vocab_size, (arguments.batch, arguments.length))
    gradient = torch.randn(arguments.batch, arguments.length, arguments.width)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids).last_hidden_state.backward(gradient)

    return step


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, `rounds` times, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(3):
        for step in steps.values():
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", nargs="+", default=["topk:5", "topk:9", "banded:5", "block:5", "banded:5+global:1"])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--form", choices=["multihead", "bilinear"], default="multihead")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    masks = list(dict.fromkeys(["full", *arguments.masks]))
    seconds = measure({mask: step_of(mask, arguments) for mask in masks}, arguments.rounds)
    print(
        f"forward + backward, batch {arguments.batch}, length {arguments.length}, {arguments.layers} blocks, "
        f"d {arguments.width}, {arguments.heads} head(s), {arguments.form}, {arguments.threads} thread(s), "
        f"medians of {arguments.rounds} interleaved rounds"
    )
    full = statistics.median(seconds["full"])
    for mask in masks:
        median = statistics.median(seconds[mask])
        ratios = sorted(a / b for a, b in zip(seconds[mask], seconds["full"], strict=True))
        print(
            f"{mask:20s} {median * 1e3:8.2f} ms   {median / full:5.2f} x full   "
            f"(paired quartiles {ratios[len(ratios) // 4]:.2f}–{ratios[3 * len(ratios) // 4]:.2f})"
        )


if __name__ == "__main__":
    main()
