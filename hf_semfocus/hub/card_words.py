"""The words and figures of a model card, from the facts of its run: results beside chance, the outcome, the limits."""

import math

from ..text import accuracy, length_text, percent, plural, reach_text
from .run_json import RunFacts


def result_rows(facts: RunFacts) -> list[tuple[str, str, str, str]]:
    """What was measured, its accuracy, chance, and the accuracy of always giving the most frequent answer."""
    found, base, spec = facts.accuracy, facts.baselines, facts.spec
    kinds = [("", "_accuracy", "chance", "majority_accuracy")]
    if facts.task.kind == "token_classification":
        kinds = [
            (", whole sequences", "_accuracy", "chance", "majority_accuracy"),
            (", output tokens", "_token_accuracy", "token_chance", "token_majority_accuracy"),
        ]
    splits = (("held-out", "heldout", spec.test_size), ("training", "train", spec.train_size))
    return [
        (
            f"{name} ({size:,} rows){what}",
            accuracy(found[part + key]),
            accuracy(base[chance]),
            accuracy(base[majority]),
        )
        for name, part, size in splits
        for what, key, chance, majority in kinds
        if found[part + key] is not None
    ]


def outcome(facts: RunFacts) -> str:
    """When the run learnt, or that it did not, in a sentence."""
    training = facts.spec.training
    tau, heldout_tau = percent(training.tau), percent(training.heldout_tau)
    trained = len(facts.history)
    diverged = f" The loss became infinite or NaN in epoch {trained}: the run **diverged**." if facts.diverged else ""
    if not training.evaluate_train:
        return f"Training accuracy was not measured; {trained} epochs were trained.{diverged}"
    if not facts.train.reached:
        return f"**Censored**: {tau} training accuracy was not reached in {plural(trained, 'epoch')}.{diverged}"
    heldout = f"after {facts.heldout.epochs}" if facts.heldout.reached else "not reached"
    return (
        f"{tau} training accuracy: after {plural(facts.train.epochs, 'epoch')}; {heldout_tau} held-out accuracy: {heldout}. "
        f"It had {trained} of {plural(training.epochs, 'epoch')}.{diverged}"
    )


def limits(facts: RunFacts) -> list[str]:
    """What the checkpoint must not be taken for, a sentence or two each."""
    spec, task, found, base = facts.spec, facts.task, facts.accuracy, facts.baselines
    said = ["It is one run with one seed. To compare masks takes several seeds, each paired with full attention."]
    if facts.reduced:
        said.append("It is of reduced size, and says nothing about results at full size.")
    if not task.in_paper:
        said.append("The paper's suite does not have this task.")
    if not facts.train.reached and spec.training.evaluate_train:
        said.append("In more epochs it may have learnt the task.")
    guess = max(base.chance or 0.0, base.majority_accuracy or 0.0)
    error = math.sqrt(guess * (1 - guess) / (spec.test_size or 1))
    if (found["heldout_accuracy"] or 0.0) <= guess + 2 * error:
        said.append(
            f"It has not learnt the task: its held-out accuracy is at most two standard errors ({2 * error:.3f}) above guessing."
        )
    if facts.reach and facts.reach.sees_all is False:
        said.append(
            f"Its mask cannot see the whole input (through all blocks: {reach_text(facts.reach)}). If it fails for that reason, this "
            "says nothing about masks that can."
        )
    config = {**facts.architecture, **spec.model}
    multiple = config.get("pad_to_multiple_of") or 1
    room = (config["max_position_embeddings"] - config.get("num_global_tokens", 0)) // multiple * multiple
    most = room - (config["pooling"] == "cls")
    said += [
        f"It has seen inputs of length {length_text(spec['length'])} alone. It refuses those of more than {most} tokens.",
        f"It knows {' '.join(f'`{symbol}`' for symbol in task['vocabulary'])} and no language; any other symbol is read as `[UNK]`.",
    ]
    return said
