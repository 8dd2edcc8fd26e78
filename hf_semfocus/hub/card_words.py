"""The words and figures of a model card, from the facts of its run: results beside chance, the outcome, the limits."""

import math

from ..text import accuracy, epochs_text, length_text, percent, reach_text
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
        return (
            f"**Censored**: training accuracy did not reach {tau} in the {trained} epochs that were trained "
            f"(epochs to {tau}: `{epochs_text(facts.train)}`).{diverged}"
        )
    return (
        f"Training accuracy reached {tau} after {epochs_text(facts.train)} epochs (held-out {heldout_tau}: "
        f"{epochs_text(facts.heldout)}; trained: {trained}, allowed: {training.epochs}).{diverged}"
    )


def limits(facts: RunFacts) -> list[str]:
    """What the checkpoint must not be taken for, a sentence or two each."""
    spec, task, found, base = facts.spec, facts.task, facts.accuracy, facts.baselines
    said = []
    if facts.reduced:
        said.append(f"**Reduced size**: {'; '.join(facts.reduced)}. It says nothing about results at full size.")
    if not task.in_paper:
        said.append("The paper's suite does not have this task.")
    if not facts.train.reached and spec.training.evaluate_train:
        said.append("**Censored**: it may have learnt the task in more epochs. It is not a trained solution of it.")
    guess = max(base.chance or 0.0, base.majority_accuracy or 0.0)
    error = math.sqrt(guess * (1 - guess) / (spec.test_size or 1))
    if (found["heldout_accuracy"] or 0.0) <= guess + 2 * error:
        said.append(
            f"Its held-out accuracy is within two standard errors ({2 * error:.3f}) of guessing, or below: it has not learnt the task."
        )
    if facts.reach and facts.reach.sees_all is False:
        said.append(
            f"Its mask cannot see the whole input (through all blocks: {reach_text(facts.reach)}). That it fails where it cannot see "
            "does not mean that sparse attention does not help."
        )
    positions = facts.architecture["max_position_embeddings"]
    said += [
        f"It was trained and tested on inputs of length {length_text(spec['length'])} from one synthetic distribution. Other lengths were "
        f"not tested, and inputs of more than {positions} tokens are refused.",
        f"It knows the symbols {' '.join(f'`{symbol}`' for symbol in task['vocabulary'])} and no language; any other is read as `[UNK]`.",
        "It is one run with one seed. How masks compare needs several seeds, each paired with full attention.",
    ]
    return said
