"""Puts the quickstart's table and picture, and the benchmarks' figures, into README.md, from what their commands left.

python recipes/update_readme.py runs/quickstart        # after `make quickstart`
python recipes/update_readme.py --cost runs/cost.txt   # after `make benchmark`
python recipes/update_readme.py --data runs/data.txt   # after `make benchmark`
python recipes/update_readme.py --attention runs/attention   # after `make benchmark`
python recipes/update_readme.py --minilm runs/sparse_minilm  # after `python recipes/sparse_minilm.py`
python recipes/update_readme.py --claims               # after `python recipes/claims.py`
python recipes/update_readme.py --settings             # after `python recipes/store_results.py … --as theory` or `reduced`

Results that the README shows are kept in recipes/results/; a test compares the README with them.
"""

import argparse
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_semfocus.report.tables import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "recipes" / "results"
MAIN_PICTURE = "reduced/speedups.png"


def quickstart_section(summary: dict) -> str:
    """The README's lines about the quickstart: what was run, the table, the picture."""
    machine = summary["machine"]
    longest = sum(run["seconds"] for run in summary["runs"]) / 60
    about = (
        f"{summary['note']} Run on {machine['cores']} cores ({machine['processor']}); {longest:.1f} minutes of one core "
        "in all. Seconds vary with the machine, epochs hardly."
    )
    picture = "![Training and held-out accuracy against epochs](recipes/results/quickstart/curves.png)"
    return f"{about}\n\n{markdown_table(summary).strip()}\n\n{picture}"


def replaced(text: str, name: str, section: str) -> str:
    """`text` with what stands between the two comments of `name` replaced."""
    pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    assert pattern.search(text), f"README.md has no place for {name}"
    return pattern.sub(lambda found: f"{found[1]}{section}\n{found[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_directory", nargs="?", type=Path, help="what `make quickstart` wrote")
    parser.add_argument("--cost", type=Path, help="what `make benchmark` printed about masks")
    parser.add_argument("--data", type=Path, help="what `make benchmark` printed about data")
    parser.add_argument("--attention", type=Path, help="what `semfocus bench attention` wrote, its profile included")
    parser.add_argument("--minilm", type=Path, help="what recipes/sparse_minilm.py wrote")
    parser.add_argument("--claims", action="store_true", help="what recipes/claims.py wrote into recipes/results")
    parser.add_argument("--settings", action="store_true", help="what recipes/results/theory, gain and reduced hold")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    if options.run_directory is not None:
        kept = RESULTS / "quickstart"
        kept.mkdir(parents=True, exist_ok=True)
        for name in ("summary.json", "summary.csv", "speedups.csv"):
            shutil.copy(options.run_directory / name, kept / name)
        for picture in (options.run_directory / "figures").glob("*.png"):
            shutil.copy(picture, kept / picture.name)
        summary = json.loads((kept / "summary.json").read_text(encoding="utf-8"))
        text = replaced(text, "quickstart", quickstart_section(summary))
    for name in ("cost", "data"):
        printed = getattr(options, name)
        if printed is not None:
            RESULTS.mkdir(parents=True, exist_ok=True)
            shutil.copy(printed, RESULTS / f"{name}.txt")
            text = replaced(text, name, printed_section(printed.read_text(encoding="utf-8")))
    if options.attention is not None:
        for name in ("attention.txt", "attention.csv", "attention.png", "attention_profile.txt"):
            shutil.copy(options.attention / name, RESULTS / name)
        text = replaced(text, "attention", attention_section((RESULTS / "attention.txt").read_text(encoding="utf-8")))
    if options.minilm is not None:
        kept = RESULTS / "sparse_minilm"
        kept.mkdir(parents=True, exist_ok=True)
        for path in options.minilm.iterdir():
            if path.resolve() != (kept / path.name).resolve():
                shutil.copy(path, kept / path.name)
        text = replaced(text, "minilm", minilm_section((kept / "table.md").read_text(encoding="utf-8")))
    if options.claims:
        text = replaced(text, "claims", claims_section(json.loads((RESULTS / "claims.json").read_text("utf-8"))))
    if options.settings:
        stored = (
            json.loads((RESULTS / name / "summary.json").read_text("utf-8")) for name in ("theory", "gain", "reduced")
        )
        text = replaced(text, "settings", settings_section(*stored))
    readme.write_text(text, encoding="utf-8")


def printed_section(printed: str) -> str:
    """The README's lines about cost and speed: the benchmarks' own words."""
    return f"```text\n{printed.strip()}\n```"


def attention_section(printed: str) -> str:
    """The README's lines about attention: the setting and the goals in sight, all figures below."""
    setting, goals, *tables = printed.strip("\n").split("\n\n")
    picture = "![Time and peak extra memory of attention against length](recipes/results/attention.png)"
    first = printed_section("\n\n".join((setting, goals)))
    rest = printed_section("\n\n".join(tables))
    return f"{first}\n\n{picture}\n\n<details><summary>All figures</summary>\n\n{rest}\n\n</details>"


def minilm_section(table: str) -> str:
    """The README's lines about the pretrained model: the recipe's own table, and its picture."""
    picture = "![Quality against the keys that each query keeps](recipes/results/sparse_minilm/quality.png)"
    return f"{table.strip()}\n\n{picture}"


def claims_section(found: Mapping[str, Any], results: Path = RESULTS) -> str:
    """The README's lines about the paper's claims: the main picture where it is stored, and a verdict a claim and size.

    Args:
        found: what `claims.py` wrote into claims.json.
        results: where that is.
    """
    claims = [entry for entry in found["claims"] if entry["task"] is None]
    columns = list(dict.fromkeys(entry["size"].split(" (")[0] for entry in claims))
    by_claim: dict[str, dict[str, Mapping[str, Any]]] = {}
    for entry in claims:
        by_claim.setdefault(entry["claim"], {})[entry["size"].split(" (")[0]] = entry
    told = [("claim", *columns), ("---",) * (1 + len(columns))]
    for words, by_size in by_claim.items():
        told.append((words, *(_verdict(by_size.get(size)) for size in columns)))
    lines = [f"| {' | '.join(row)} |" for row in told]
    lines += [
        "",
        "The numbers behind each verdict, the rules, and which runs are missing: `recipes/results/claims.md`.",
    ]
    if (results / MAIN_PICTURE).is_file():
        lines = [f"![Speed-ups of each mask on each task](recipes/results/{MAIN_PICTURE})", "", *lines]
    return "\n".join(lines)


def _verdict(entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["verdict"] == "not tested":
        return "–" if entry is None else "not tested"
    return f"**{entry['verdict']}**{' (provisional)' if entry['provisional'] else ''}"


def settings_section(
    first: Mapping[str, Any], gain: Mapping[str, Any], searched: Mapping[str, Any], mask: str = "topk:5"
) -> str:
    """The README's lines about one comparison under three sets of hyperparameters, from three stored summaries.

    Args:
        first: of the setting that full attention was first seen to learn with.
        gain: of the same with larger initial scores and nothing else changed.
        searched: of the settings that the search chose for full attention.
        mask: beside full attention.
    """
    lines = [
        "| task | hyperparameters | `full`: epochs to 95 % | " + f"`{mask}` | speed-up |",
        "| --- | --- | --- | --- | --- |",
    ]
    tasks = [
        entry["name"] for entry in first["tasks"] if any(entry["name"] == other["name"] for other in searched["tasks"])
    ]
    for task in tasks:
        for words, summary in (
            ("first seen to work", first),
            ("the same, larger initial scores", gain),
            ("searched for `full`", searched),
        ):
            told = {
                entry["mask"]: entry["epochs_to_tau_text"] for entry in summary["aggregates"] if entry["task"] == task
            }
            (speed,) = (
                entry["text"]
                for entry in summary["speedups"]
                if (entry["task"], entry["mask"], entry["quantity"]) == (task, mask, "train")
            )
            (used,) = (entry["hyperparameters"] for entry in summary["tasks"] if entry["name"] == task)
            training, model = used["training"], used["model"]
            clip = f"clip {training['max_grad_norm']:g}" if training["max_grad_norm"] else "no clip"
            scores = f"attention gain {model.get('attention_gain', 1.0):g}"
            setting = f"{words}: rate {training['learning_rate']:g}, {clip}, batch {training['batch_size']}, {scores}"
            lines.append(f"| {task} | {setting} | {told['full']} | {told[mask]} | {speed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
