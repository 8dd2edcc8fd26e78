"""Pretraining: masked-LM on a task's text, then fine-tuning on the task; how fast both converge, for each mask.

python recipes/pretraining.py missing_duplicate_string --output runs/pretraining        # about an hour on one core
python recipes/pretraining.py missing_duplicate_string --output runs/pre-quick --quick  # a minute: shows the machinery

Each mask is pretrained with it, then fine-tuned with it, and beside that trained from scratch: same rows, same batch order,
same hyperparameters. Started again, the recipe goes on: what was pretrained and what was trained on the task is kept. The
text has to hold something to learn: that of even_pairs or parity_check is uniform at random.
Writes pretraining.json, pretraining.md, pretraining.png, and the pretrained models under models/.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from study import majority_accuracy, model_class, size_in_words, study, to_device
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, set_seed

from hf_semfocus import SemFocusConfig, SemFocusForMaskedLM, parse_mask
from hf_semfocus.cli.progress import EpochBar
from hf_semfocus.data import build_tokenizer, load_task, task_info
from hf_semfocus.experiments.spec import TrainingOptions, mask_slug, spread_seed
from hf_semfocus.files import read_json, write_json
from hf_semfocus.report.axes import legend_style, mask_key, prepare, title_style
from hf_semfocus.report.palette import LIGHT, mask_styles
from hf_semfocus.training.accuracy import measure_accuracy
from hf_semfocus.training.rows import TensorRows

TAU = 0.95
DEFAULTS: dict[str, Any] = {
    "length": 20, "masks": ["full", "topk:5", "banded:5"], "seeds": [0, 1, 2], "layers": 3, "pretraining-epochs": 30, "epochs": 30,
    "batch-size": 100, "learning-rate": 1e-3, "train-size": 5000, "test-size": 1000,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "length": 12, "layers": 1, "pretraining_epochs": 2, "epochs": 2, "train_size": 60, "test_size": 20, "seeds": [0],
    "masks": ["full", "topk:5"],
}  # fmt: skip
Batch = dict[str, torch.Tensor]
Report = Callable[[dict[str, Any]], None]


def shuffled(rows: TensorRows, batch_size: int, seed: int) -> Iterator[Batch]:
    """One epoch of batches in an order that `seed` fixes."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    for some in order.split(batch_size):
        yield rows.batch(some)


def epochs_of(
    model: PreTrainedModel, batches: Callable[[int], Iterator[Batch]], epochs: int, learning_rate: float
) -> Iterator[int]:
    """Trains an epoch at a time (AdamW, gradients clipped to norm 1) and gives its number."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    for epoch in range(1, epochs + 1):
        model.train()
        for batch in batches(epoch):
            optimizer.zero_grad()
            model(**{name: value.to(model.device) for name, value in batch.items()}).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        yield epoch


@torch.no_grad()
def masked_accuracy(model: PreTrainedModel, batches: Sequence[Batch]) -> tuple[float, float]:
    """Share of masked tokens that are predicted, and mean cross-entropy in nats, in evaluation mode."""
    model.eval()
    right = total = loss = 0.0
    for batch in batches:
        batch = {name: value.to(model.device) for name, value in batch.items()}
        labels = batch.pop("labels")
        logits = model(**batch).logits
        masked = labels != -100
        right += (logits.argmax(-1) == labels)[masked].sum().item()
        loss += torch.nn.functional.cross_entropy(logits[masked], labels[masked], reduction="sum").item()
        total += masked.sum().item()
    return right / total, loss / total


def pretrained(
    options: argparse.Namespace, config: SemFocusConfig, rows: dict[str, TensorRows], seed: int, report: Report
) -> Any:
    """The masked language model, its history, and the share of the most frequent masked token."""
    tokenizer = build_tokenizer(options.task)

    def masked(batch: Batch, number: int) -> Batch:
        collate = DataCollatorForLanguageModeling(tokenizer, seed=number)
        attention = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
        examples = [
            {"input_ids": ids, "attention_mask": real} for ids, real in zip(batch["input_ids"], attention, strict=True)
        ]
        return dict(collate(examples))

    def batches(epoch: int) -> Iterator[Batch]:
        for place, batch in enumerate(shuffled(rows["train"], options.batch_size, spread_seed(seed) + epoch)):
            yield masked(batch, spread_seed(seed) + 10_000 * epoch + place)

    held_out = [
        masked(rows["validation"].batch(slice(start, start + 250)), start)
        for start in range(0, len(rows["validation"]), 250)
    ]
    tokens = torch.cat([batch["labels"][batch["labels"] != -100] for batch in held_out])
    set_seed(spread_seed(seed))
    model = to_device(SemFocusForMaskedLM(config))
    history = []
    for epoch in epochs_of(model, batches, options.pretraining_epochs, options.learning_rate):
        accuracy, loss = masked_accuracy(model, held_out)
        history.append({"epoch": epoch, "accuracy": accuracy, "loss": loss})
        report({"epoch": epoch, "heldout_accuracy": accuracy})
    return model, history, tokens.bincount().max().item() / len(tokens)


def fine_tuned(
    options: argparse.Namespace, model: PreTrainedModel, rows: dict[str, TensorRows], seed: int, report: Report
) -> list[dict[str, float]]:
    """Training and held-out accuracy after each epoch, the start among them."""

    def batches(epoch: int) -> Iterator[Batch]:
        return shuffled(rows["train"], options.batch_size, spread_seed(seed) + epoch)

    def entry(epoch: int) -> dict[str, float]:
        of = {
            name: measure_accuracy(model, rows[split], 250)
            for name, split in (("train", "train"), ("held_out", "test"))
        }
        accuracies = {"epoch": epoch, "train": of["train"].accuracy, "held_out": of["held_out"].accuracy}
        report({"epoch": epoch, "train_accuracy": accuracies["train"], "heldout_accuracy": accuracies["held_out"]})
        return accuracies

    set_seed(spread_seed(seed))
    return [entry(0), *(entry(epoch) for epoch in epochs_of(model, batches, options.epochs, options.learning_rate))]


def check_settings(options: argparse.Namespace) -> None:
    """Values that can be trained with; masks and seeds may be added to what is there, everything else has to be the same."""
    TrainingOptions(epochs=options.epochs, batch_size=options.batch_size, learning_rate=options.learning_rate)
    for name in ("pretraining_epochs", "layers", "length", "train_size", "test_size"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; allowed: at least 1")
    for mask in options.masks:
        parse_mask(mask)
    free = {"output", "masks", "seeds", "command"}
    asked = {name: value for name, value in vars(options).items() if name not in free}
    path = options.output / "settings.json"
    if path.is_file():
        there = read_json(path)
        for name, value in asked.items():
            if there.get(name) != value:
                raise ValueError(
                    f"{options.output} holds results with {name} {there.get(name)!r}, asked: {value!r}; choose another"
                )
    write_json(path, asked)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All masks and seeds; what an earlier start left is taken over.

    Raises:
        ValueError: `output` holds results of other settings.
    """
    check_settings(options)
    console = Console()
    info, cls = task_info(options.task), model_class(options.task)
    tokenizer = build_tokenizer(options.task)
    runs, majority, majority_token = [], [], []
    for seed in options.seeds:
        data = load_task(
            options.task, length=options.length, train_size=options.train_size, validation_size=options.test_size,
            test_size=options.test_size, seed=seed,
        )  # fmt: skip
        rows = {name: TensorRows(data[name], tokenizer.pad_token_id) for name in ("train", "validation", "test")}
        majority.append(majority_accuracy(data["test"], options.task))
        for mask in options.masks:
            labels: dict[str, Any] = {
                "id2label": dict(enumerate(info.labels)),
                "label2id": {name: i for i, name in enumerate(info.labels)},
            }
            config = SemFocusConfig(
                mask=mask, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id,
                num_hidden_layers=options.layers, max_position_embeddings=max(r.input_ids.shape[1] for r in rows.values()),
                **labels,
            )  # fmt: skip
            folder = options.output / "models" / mask_slug(config.mask) / f"seed-{seed}"
            done = folder / "pretraining.json"
            if not done.is_file():
                with EpochBar(f"{config.mask}, seed {seed}: pretraining", options.pretraining_epochs, console) as bar:
                    model, history, most = pretrained(options, config, rows, seed, bar.update)
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
                write_json(done, {"history": history, "majority_token": most})  # last: only now is it complete
            first = read_json(done)
            majority_token.append(first["majority_token"])
            starts: dict[str, Callable[[], PreTrainedModel]] = {
                "pretrained": partial(cls.from_pretrained, folder, **labels),
                "scratch": partial(cls, config),
            }
            for start, make in starts.items():
                kept = options.output / "runs" / mask_slug(config.mask) / f"seed-{seed}" / f"{start}.json"
                if not kept.is_file():
                    set_seed(spread_seed(seed))
                    with EpochBar(f"{config.mask}, seed {seed}: task, {start}", options.epochs, console) as bar:
                        write_json(kept, fine_tuned(options, to_device(make()), rows, seed, bar.update))
                run = {"mask": config.mask, "seed": seed, "start": start, "history": read_json(kept)}
                runs.append({**run, "pretraining": first["history"]})
    budget = f"{options.pretraining_epochs} epochs of pretraining, {options.epochs} on the task"
    return {
        "task": options.task, "length": options.length, "quick": options.quick, "runs": runs, "tau": TAU,
        "command": options.command, "size": size_in_words(options, budget),
        "majority": sum(majority) / len(majority), "majority_token": sum(majority_token) / len(majority_token),
    }  # fmt: skip


def epochs_to(history: Sequence[dict[str, float]], name: str) -> str:
    """The first epoch at which the accuracy is at least `TAU`, or that it was not within the budget: ``>30``."""
    first = next((entry["epoch"] for entry in history if entry[name] >= TAU), None)
    return f">{history[-1]['epoch']}" if first is None else str(first)


def table(results: dict[str, Any]) -> str:
    """Markdown: a row a mask and start; seeds side by side, censored ones as ``>budget``."""
    quick = " (quick run: reduced in every respect)" if results["quick"] else ""
    lines = [
        f"`{results['command']}`",
        "",
        f"{results['size']} {results['task']}, length {results['length']}{quick}. Epochs to {TAU:.0%} accuracy on training and "
        "held-out rows, seeds side by side; masked tokens predicted after pretraining (most frequent token: "
        f"{results['majority_token']:.3f}); held-out accuracy at the end (majority class: {results['majority']:.3f}).",
        "",
        "| mask | start | masked tokens | epochs, training | epochs, held-out | held-out accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for mask, start in dict.fromkeys((run["mask"], run["start"]) for run in results["runs"]):
        runs = [run for run in results["runs"] if (run["mask"], run["start"]) == (mask, start)]
        tokens = ", ".join(f"{run['pretraining'][-1]['accuracy']:.3f}" for run in runs)
        cells = [
            f"`{mask}`", start, tokens if start == "pretrained" else "–",
            ", ".join(epochs_to(run["history"], "train") for run in runs),
            ", ".join(epochs_to(run["history"], "held_out") for run in runs),
            ", ".join(f"{run['history'][-1]['held_out']:.3f}" for run in runs),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def picture(results: dict[str, Any]) -> Figure:
    """Masked tokens predicted against pretraining epochs; held-out accuracy against epochs on the task, scratch dashed."""
    masks = list(dict.fromkeys(run["mask"] for run in results["runs"]))
    styles = mask_styles(masks, masks[0])
    figure = Figure(figsize=(9.6, 3.6), layout="constrained", facecolor=LIGHT.paper)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        prepare(axes, LIGHT)
        axes.set_ylim(0, 1.03)
    for run in results["runs"]:
        style, fresh = styles[run["mask"]], run["start"] == "pretrained"
        dashes = "-" if fresh else "--"
        history = run["history"]
        right.plot(
            [e["epoch"] for e in history], [e["held_out"] for e in history], color=style.colour, linestyle=dashes
        )
        if fresh:
            history = run["pretraining"]
            left.plot([e["epoch"] for e in history], [e["accuracy"] for e in history], color=style.colour)
    left.axhline(results["majority_token"], color=LIGHT.faint, linestyle=":")
    right.axhline(results["majority"], color=LIGHT.faint, linestyle=":")
    left.set_title("masked tokens predicted (dotted: the most frequent one)", **title_style(LIGHT))
    right.set_title("held-out accuracy (dashed: from scratch; dotted: majority class)", **title_style(LIGHT))
    reduced = " (reduced size)" if results["size"].startswith("Reduced") else ""
    figure.suptitle(
        f"{results['task']}, length {results['length']}{reduced}", x=0.01, ha="left", fontsize=10, color=LIGHT.ink
    )
    left.set_xlabel("epoch of pretraining", color=LIGHT.ink, fontsize=9)
    right.set_xlabel("epoch on the task", color=LIGHT.ink, fontsize=9)
    handles = [mask_key(styles[mask], mask) for mask in masks]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)), **legend_style(LIGHT))
    return figure


def main(arguments: Sequence[str]) -> None:
    options, results = study("pretraining", __doc__, DEFAULTS, QUICK, measured, arguments)
    write_json(options.output / "pretraining.json", results)
    (options.output / "pretraining.md").write_text(table(results), encoding="utf-8")
    picture(results).savefig(options.output / "pretraining.png", dpi=150)
    print(table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
