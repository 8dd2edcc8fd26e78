"""The page of tier 1: the one place where its verdicts become words."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN

from hf_semfocus.comparison.paired_tests import Judgement, Verdict
from hf_semfocus.experiments.presets import PAPER_TRAINING
from hf_semfocus.text import epochs_text, format_ratio, plural

from .archive import same_machine
from .records import BASELINE, LISTOPS, MASK, Gap, Machine, Pair, RunRecord, Status, TaskRecord, stored_name
from .stored_readme import machine_text
from .tier1 import GENERALISES_ON, MARGIN, Claim, Kind, Scope, Tier, Untested
from .verdicts import near_one

PICTURES = {
    "curves": "Training loss and held-out accuracy against epochs: median and quartiles over the seeds",
    "reached": "Kaplan–Meier curves of the runs that have reached τ, and the performance profile over tasks and seeds",
}
TAU = f"{PAPER_TRAINING['tau']:.0%}".replace("%", " %")
VERDICTS = {
    Verdict.SUPPORTED: "**supported**",
    Verdict.CONTRADICTED: "**contradicted**",
    Verdict.UNDECIDED: "undecided",
    Verdict.NOT_TESTED: "not tested",
}
CLAIMS = {
    (Kind.FASTER, Scope.MEAN): f"`{MASK}` learns faster on average over these seven tasks",
    (Kind.FASTER, Scope.TASKS): f"`{MASK}` learns faster on tasks of this kind",
    (Kind.FASTER, Scope.TASK): f"`{MASK}` learns {{task}} faster",
    (Kind.NOT_WORSE, Scope.TASKS): f"Held-out accuracy with `{MASK}` is not worse over tasks",
    (Kind.NOT_WORSE, Scope.TASK): f"Held-out accuracy with `{MASK}` is not worse on {{task}}",
    (Kind.BETTER, Scope.TASK): f"Held-out accuracy with `{MASK}` is better on {{task}}",
    (Kind.FITS_ALL, Scope.ALL): f"Full attention reaches {TAU} on every task",
    (Kind.GENERALISES, Scope.ALL): f"Full attention generalises on {GENERALISES_ON} of the 8 tasks",
}
GAPS = {
    Gap.TWO_MACHINES: "trained on two machines: to be run again, whole",
    Gap.MACHINE_UNKNOWN: "the machine was not recorded",
}
STATUSES = {
    Status.FAILED: "failed",
    Status.UNFINISHED: "unfinished",
    Status.NOT_STARTED: "not started",
}


def markdown(
    tier: Tier, pictures: Iterable[str] = (), more: Iterable[str] = (), not_stored: Iterable[str] = ()
) -> str:
    """Tier 1's page, with the pictures of these names, what follows on it, and the titles of parts of which nothing is stored."""
    drawn = {name: f"![{words}](paper/{name}.png)" for name, words in PICTURES.items() if name in pictures}
    lines = [
        "# The paper, reproduced at its own recipe",
        "",
        "Made by `python -m recipes.reproduction` from the comparisons `paper_*` in this folder. The rules are those of "
        "[docs/protocol.md](../../docs/protocol.md), fixed before the runs except where its diary says otherwise; the numbers are also in "
        "`paper.json`. Each comparison's own page has other intervals (geometric mean, Student's t); for verdicts these here count.",
        "",
        f"Recipe: `--preset paper-nnch` (length 40, 5 blocks, ReLU, plain SGD); `{MASK}` beside `{BASELINE}`, six paired seeds a task. "
        f"{how_far(tier)}",
        "",
        "## Claims",
        "",
        *_table(claim for claim in tier.claims if claim.scope is not Scope.TASK),
        "",
        "Task by task:",
        "",
        *_table(claim for claim in tier.claims if claim.scope is Scope.TASK and not _waits(claim)),
        "",
        *_waiting(tier),
        f"An effect on speed is epochs of full attention over epochs of `{MASK}` to {TAU} training accuracy (above 1: `{MASK}` is faster); "
        f"an effect on held-out accuracy is `{MASK}` − `{BASELINE}`. *Undecided* is a lack of evidence. "
        "*This task alone*: at 5 % for that task, and not over all tasks of its claim (Holm), which six pairs cannot give. With six pairs "
        f"an interval runs from the smallest to the largest of the six. p is of the claim's bound: 1, −{MARGIN:g} (*not worse*) or 0 "
        f"(*better*). Runs stop soon after {TAU}, and held-out accuracy is that of their last five epochs, not of the authors' budgets.",
        "",
    ]
    if "curves" in drawn:
        lines += [
            drawn["curves"],
            "",
            "Runs that have ended, a column a task. One that stopped early counts with its last value; lines are dashed from where the "
            "first of the seeds has stopped.",
            "",
        ]
    lines += ["## What is missing, and why", "", *_missing(tier.tasks)]
    lines += [*(f"- {title}: nothing is stored yet." for title in not_stored), ""]
    if "reached" in drawn:
        lines += [
            "## How many runs have learnt it, and when",
            "",
            drawn["reached"],
            "",
            "Of the pairs that count, with 95 % bands. They decide nothing.",
            "",
        ]
    lines += ["## Task by task"]
    for task in tier.tasks:
        if task.stored:
            lines += ["", *_task(task, tier)]
    if not any(task.stored for task in tier.tasks):
        lines += ["", "Nothing is stored yet."]
    lines += ["", *more]
    return "\n".join(lines).rstrip() + "\n"


def _table(claims: Iterable[Claim]) -> list[str]:
    head = ["| claim | setting | effect [95 % interval] | verdict |", "| --- | --- | --- | --- |"]
    return [*head, *(f"| {_words(one)} (`{one.name}`) | {_cells(one)} |" for one in claims)]


def _waits(claim: Claim) -> bool:
    return claim.scope is Scope.TASK and claim.untested is Untested.PAIRS_MISSING and not claim.judgement.n


def _waiting(tier: Tier) -> list[str]:
    tasks = list(dict.fromkeys(claim.task for claim in tier.claims if _waits(claim) and claim.task))
    return [f"Not tested, as no pair counts yet: the same three claims on {', '.join(tasks)}.", ""] if tasks else []


def _cells(claim: Claim) -> str:
    return f"{_setting(claim)} | {effect(claim)} | {verdict(claim)}"


def readme_table(tier: Tier) -> str:
    """Five claims for the README: those over all tasks that were tested, then speed, then held-out accuracy with the lowest first."""

    def rank(claim: Claim) -> tuple[bool, bool, int, float]:
        judged = claim.judgement
        lowest = (judged.estimate_low or 0.0) if claim.kind is Kind.NOT_WORSE else 0.0
        return judged.verdict is Verdict.NOT_TESTED, claim.scope is Scope.TASK, list(Kind).index(claim.kind), lowest

    shown = sorted(tier.claims, key=rank)[:5]
    rows = [
        f"| {_words(one)} | {_cells(one)} | [{one.name}](recipes/results/paper.md#{one.task or 'claims'}) |"
        for one in shown
    ]
    note = (
        f"{how_far(tier)} Speed: epochs of full attention over those of `{MASK}`; held-out: `{MASK}` − full attention. "
        "*This task alone*: p ≤ 0.05 for that task, not after correction over the seven tasks (Holm). *Not worse*: by "
        f"less than {MARGIN:g} (p is against −{MARGIN:g}), where runs stop, soon after {TAU}. [All claims](recipes/results/paper.md)."
    )
    return "\n".join(
        [note, "", "| claim | setting | effect [95 % interval] | verdict | page |", "|---|---|---|---|---|", *rows]
    )


def how_far(tier: Tier) -> str:
    """How many of the planned pairs count, and on how many tasks."""
    counted = sum(len(task.counted) for task in tier.tasks)
    complete = sum(task.complete for task in tier.tasks)
    untested = sum(claim.judgement.verdict is Verdict.NOT_TESTED for claim in tier.claims)
    rest = f", and {untested} of {len(tier.claims)} claims are not tested yet" if untested else ""
    return (
        f"Of `{MASK}` beside `{BASELINE}`, {counted} of {sum(len(task.pairs) for task in tier.tasks)} planned pairs count so far; "
        f"{complete} of {len(tier.tasks)} tasks have all of theirs{rest}."
    )


def results_line(tier: Tier) -> str:
    """For docs/results.md: the speed-up on each task that was tested."""
    tested = [
        f"{claim.task} {speed_text(claim.judgement)}, {verdict(claim).replace('**', '')}"
        for claim in tier.claims
        if claim.kind is Kind.FASTER and claim.task and claim.judgement.verdict is not Verdict.NOT_TESTED
    ]
    return f"- At the paper's own recipe, epochs of full attention over those of `{MASK}`: {'; '.join(tested)}. {how_far(tier)}"


def _words(claim: Claim) -> str:
    return CLAIMS[claim.kind, claim.scope].format(task=claim.task)


def verdict(claim: Claim) -> str:
    """The verdict in words, and for a task whether it holds over all of them."""
    return of_one_task(claim.judgement) if claim.scope is Scope.TASK else VERDICTS[claim.judgement.verdict]


def of_one_task(judged: Judgement) -> str:
    """A task's verdict in words; where it was decided, whether it holds over all tasks of the claim."""
    words = VERDICTS[judged.verdict]
    if judged.verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED):
        words += " (family-wise)" if judged.family_wise else " (this task alone)"
    return words


def _setting(claim: Claim) -> str:
    judged = claim.judgement
    if claim.untested is Untested.PAIRS_MISSING:
        short = claim.missing or {}
        names = "" if claim.task else f", on {plural(len(short), 'task')}"
        return f"{plural(sum(short.values()), 'pair')} missing{names}"
    if claim.untested is Untested.NO_GENERALISATION:
        return "both masks near chance: no generalisation to compare"
    if claim.untested is Untested.FEW_TASKS:
        return f"{plural(judged.n, 'task')} to compare, six are needed (left out, near chance: {', '.join(claim.left_out)})"
    if claim.scope is Scope.ALL:
        return f"{judged.n} tasks"
    units = {Scope.TASKS: "task", Scope.MEAN: "seed"}.get(claim.scope, "pair")
    margin = f", margin {MARGIN:g}" if claim.kind is Kind.NOT_WORSE else ""
    test = {"sign_flip": "sign-flip test", "sign": "sign test (pairs are censored)"}[judged.test or "sign_flip"]
    out = f"; left out, near chance: {', '.join(claim.left_out)}" if claim.left_out else ""
    return f"{plural(judged.n, units)}, {test}{margin}{out}"


def effect(claim: Claim) -> str:
    """Estimate, interval and p of a claim, or what was counted."""
    judged = claim.judgement
    if claim.scope is Scope.ALL:
        return f"{len(claim.tasks)} of {claim.of} tasks{': ' if claim.tasks else ''}{', '.join(claim.tasks)}"
    return judged_text(judged, speed=claim.kind is Kind.FASTER)


def judged_text(judged: Judgement, speed: bool = True, digits: int = 3) -> str:
    """Estimate, interval and p of a speed-up, or of a difference with so many decimals; a dash where nothing was tested."""
    if judged.p is None:
        return "–"
    text = speed_text(judged) if speed else difference_text(judged, digits)
    holm = "" if judged.p_holm is None else f" (Holm {judged.p_holm:.2g})"
    return f"{text}, p = {judged.p:.2g}{holm}"


def speed_text(judged: Judgement) -> str:
    """`2.6× [1.9, 3.4]`; with censoring what is known of both, rounded outwards."""
    low, high = judged.estimate_low, judged.estimate_high
    if exact := low is not None and low == high:
        text = f"{near_one(low)}×"
    elif not low and high is None:
        text = "not known"
    elif high is None:
        text = f"≥ {format_ratio(low or 0, ROUND_FLOOR)}×"
    elif not low:
        text = f"≤ {format_ratio(high, ROUND_CEILING)}×"
    else:
        text = f"{format_ratio(low, ROUND_FLOOR)}–{format_ratio(high, ROUND_CEILING)}×"
    ways = (ROUND_HALF_EVEN, ROUND_HALF_EVEN) if exact else (ROUND_FLOOR, ROUND_CEILING)
    below = near_one(judged.low, ways[0]) if judged.low else "0"
    above = "∞" if judged.high is None else near_one(judged.high, ways[1])
    return f"{text} [{below}, {above}]"


def difference_text(judged: Judgement, digits: int = 3) -> str:
    """`+0.004 [−0.000, +0.008]`; a dash where something is not known."""
    values = (judged.estimate_low, judged.low, judged.high)
    if any(value is None for value in values):
        return "–"
    estimate, low, high = (f"{value:+.{digits}f}".replace("-", "−") for value in values)
    return f"{estimate} [{low}, {high}]"


def _missing(tasks: Sequence[TaskRecord]) -> list[str]:
    lines = []
    for task in tasks:
        if not task.stored:
            tier = " (tier 4)" if task.name == LISTOPS else ""
            lines.append(f"- {task.name}{tier}: nothing is stored yet.")
            continue
        seeds: dict[str, list[str]] = {}
        for pair in task.pairs:
            if pair.gap is not None:
                seeds.setdefault(_gap(pair), []).append(str(pair.seed))
        reasons = [f"seed{'s' * (len(numbers) > 1)} {', '.join(numbers)} ({why})" for why, numbers in seeds.items()]
        lines += [f"- {task.name}: {'; '.join(reasons)}."] if reasons else []
    return lines or ["Nothing is missing."]


def _gap(pair: Pair) -> str:
    assert pair.gap is not None
    if pair.gap is not Gap.RUN_MISSING:
        return GAPS[pair.gap]
    if pair.baseline.status is pair.mask.status is Status.NOT_STARTED:
        return "neither run has started"
    return " and ".join(
        f"`{mask}` {STATUSES[run.status]}" + (f" after {plural(run.trained, 'epoch')}" if run.trained else "")
        for mask, run in ((BASELINE, pair.baseline), (MASK, pair.mask))
        if not run.ended
    )


def _task(task: TaskRecord, tier: Tier) -> list[str]:
    judged = {claim.kind: claim for claim in tier.claims if claim.task == task.name}
    verdicts = [f"*{kind}*: {verdict(claim)}" for kind, claim in judged.items()]
    heldout = "held-out, last five epochs"
    lines = [
        f"### {task.name}",
        "",
        f"At most {task.ceiling} epochs. {'; '.join(verdicts)}{'. ' if verdicts else ''}All runs: "
        f"[{stored_name(task.name)}]({stored_name(task.name)}/README.md).",
        "",
        f"| seed | epochs, `{BASELINE}` | epochs, `{MASK}` | {heldout}: `{BASELINE}` | `{MASK}` | best: both | "
        "at the last epoch that both trained |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_pair_row(pair) for pair in task.pairs if {pair.baseline.status, pair.mask.status} != {Status.NOT_STARTED}),
        *(_pair_row(pair, extra=True) for pair in task.extra),
    ]
    if task.name in tier.restricted:
        restricted = tier.restricted[task.name]
        saved = difference_text(restricted.difference, 1)
        with_interval = f", difference {saved}" if saved != "–" else ""
        lines += [
            "",
            f"Restricted mean epochs of the {plural(len(task.counted), 'pair')} that count: `{BASELINE}` {restricted.baseline:.1f}, "
            f"`{MASK}` {restricted.mask:.1f}{with_interval}.",
        ]
    lines += ["", *_machine_lines(task)]
    return lines


def _pair_row(pair: Pair, extra: bool = False) -> str:
    runs = (pair.baseline, pair.mask)
    seed = f"{pair.seed}{' (extra)' if extra else ''}{'' if pair.gap is None else ' (does not count)'}"
    common = " / ".join(f"{value:.3f}" for value in pair.common) if pair.common else "–"
    cells = (
        seed,
        *(epochs(run) for run in runs),
        *(_accuracy(run.heldout) for run in runs),
        " / ".join(_accuracy(run.best) for run in runs),
        common,
    )
    return f"| {' | '.join(cells)} |"


def epochs(run: RunRecord) -> str:
    """`14`, `>100`, `>3 (diverged)`, `>12 (unfinished)`; without an epoch, what has become of the run."""
    if run.convergence is None or (run.status is Status.UNFINISHED and not run.trained):
        return STATUSES[run.status]
    return epochs_text(run.convergence)


def _accuracy(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _machine_lines(task: TaskRecord) -> list[str]:
    """Each machine, and the runs that it trained."""
    machines: list[tuple[Machine, list[str]]] = []
    for pair in (*task.pairs, *task.extra):
        for mask, run in ((BASELINE, pair.baseline), (MASK, pair.mask)):
            for machine in run.machines:
                names = next((runs for known, runs in machines if same_machine(known, machine)), None)
                if names is None:
                    machines.append((machine, names := []))
                names.append(f"{mask}, seed {pair.seed}")
    if len(machines) == 1:
        return [f"Machine: {machine_text(machines[0][0])}."]
    return (
        ["Machines:", "", *(f"- {machine_text(machine)}: {'; '.join(runs)}." for machine, runs in machines)]
        if machines
        else []
    )


def counts(tier: Tier) -> Mapping[str, int]:
    """How many claims have each verdict."""
    verdicts = [claim.judgement.verdict for claim in tier.claims]
    return {one: verdicts.count(one) for one in Verdict if verdicts.count(one)}
