"""The claims of the paper that are judged at our recipe, and what the stored results that they are read from must be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_semfocus.data import list_tasks

from . import rules
from .verdicts import FEWEST_TASKS, Stored, Verdict

SUITE = tuple(list_tasks("paper"))
TAU = 0.95
TWO = ("even_pairs", "missing_duplicate_string")  # the tasks of the ablations
FIXED = ("banded:5", "block:5", "banded:5+global:1", "block:5+global:1")
RATES = {"rate_0_03": 0.03, "rate_0_1": 0.1, "rate_0_3": 0.3, "rate_1": 1.0}
CHOOSING_SEEDS = (3, 4)
ABSTRACT, DOCUMENTS, OURS = "abstract", "documents", "ours"
# What a stored result of that name must have been trained with, beside the primary form; None: what its size says.
PRIMARY = {
    "model.attention_form": "multihead",
    "model.attention_scale": None,
    "model.hidden_act": "relu",
    "model.num_attention_heads": 1,
    "model.norm_position": "post",
    "model.position_embedding_type": "learned",
    "training.optimizer": "sgd",
}
# The setting that no search chose: weights of the default size, and what full attention was first seen to learn with.
FIRST = {"model.attention_gain": None, "training.learning_rate": 0.3}
SOURCES: dict[str, dict[str, Any]] = {
    "reduced": {},
    "listops_reduced": {},
    "paper_size": {},
    "paper_size_even_pairs": {},
    "listops_paper": {},
    "activation_gelu": {"model.hidden_act": "gelu"},
    "activation_mish": {"model.hidden_act": "mish"},
    "optimizer_adam": {"training.optimizer": "adam", "training.learning_rate": 0.001},
    "form_bilinear": {"model.attention_form": "bilinear"},
    "heads_4": {"model.num_attention_heads": 4},
    "depth_2": {"model.num_hidden_layers": 2},
    "depth_6": {"model.num_hidden_layers": 6},
    "k_sweep": {},
    **{name: {"training.learning_rate": rate} for name, rate in RATES.items()},
    "theory": FIRST,
    "paper_size_first": FIRST,
    "first_gelu": {**FIRST, "model.hidden_act": "gelu"},
    "first_mish": {**FIRST, "model.hidden_act": "mish"},
    "first_adam": {**FIRST, "training.optimizer": "adam", "training.learning_rate": 0.001},
    "first_heads_4": {**FIRST, "model.num_attention_heads": 4},
    "first_depth_2": {**FIRST, "model.num_hidden_layers": 2},
    "first_depth_6": {**FIRST, "model.num_hidden_layers": 6},
    "first_bilinear": {**FIRST, "model.attention_form": "bilinear"},
}
VARIANTS = tuple(name for name in SOURCES if name.startswith("first_"))
# In what an ablation may differ beside its name: it says what is recorded and for how long, not how a run learns.
NO_MATTER = ("training.analysis_every", "training.epochs")
TIERS = {"reduced size": ("reduced", "listops_reduced"), "paper size": ("paper_size", "listops_paper")}
PAPER = TIERS["paper size"]
SHORT = {"reduced size": "reduced", "paper size": "paper_size_even_pairs"}  # where masks may fall short on even_pairs
UNSEARCHED = {"reduced size": "theory", "paper size": "paper_size_first"}
OF_PAPER_SIZE = (*PAPER, SHORT["paper size"], UNSEARCHED["paper size"])
ABLATIONS = tuple(
    name
    for name in SOURCES
    if name not in {*TIERS["reduced size"], *OF_PAPER_SIZE, *VARIANTS, UNSEARCHED["reduced size"]}
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper at one size.

    Args:
        name: unique, for data.
        words: what is claimed.
        source: where.
        size: "reduced size" or "paper size".
        read: names of the stored results that it is judged from.
        rule: what *reproduced* asks for, beyond the common rules.
        judge: the rule.
        task: of a claim about one task alone, which stands in the second table.
    """

    name: str
    words: str
    source: str
    size: str
    read: tuple[str, ...]
    rule: str
    judge: Callable[[Stored], Verdict]
    task: str | None = None


def _read(judge: Callable[..., Verdict], names: Sequence[str], *arguments: Any) -> Callable[[Stored], Verdict]:
    """A rule that takes summaries, reading those that are stored of `names`."""
    return lambda stored: judge([stored[name] for name in names if name in stored], *arguments)


def _of_size(size: str) -> list[Claim]:
    """The claims that are judged at both sizes."""
    read = TIERS[size]

    def claim(name: str, words: str, source: str, rule: str, judge: Callable[..., Verdict], *arguments: Any) -> Claim:
        # Claims about one task are read from the comparison that has it.
        task = arguments[0] if isinstance(arguments[0], str) else None
        names = read if task is None else read[1:] if task == "listops" else read[:1]
        return Claim(name, words, source, size, names, rule, _read(judge, names, *arguments))

    return [
        claim("topk_faster", "top-k attention (topk:5) learns faster than full attention", ABSTRACT, "over the tasks",
              rules.faster_over_tasks, SUITE, "topk:5"),
        claim("topk_9_faster", "top-k attention with more keys (topk:9) learns faster than full attention", DOCUMENTS,
              "over the tasks", rules.faster_over_tasks, SUITE, "topk:9"),
        claim("agnostic_not_better", "input-agnostic sparse attention is not consistently better", ABSTRACT,
              f"each of the masks run is decided slower on a task, and none is faster over the tasks; {FEWEST_TASKS} tasks with "
              "finished pairs", rules.not_consistently_better, SUITE, FIXED),
        claim("topk_generalises_better", "top-k attention generalises better than full attention", ABSTRACT,
              "mean over tasks of the paired difference in held-out accuracy at the end: its 95 % interval lies above 0, and no task is "
              f"worse by more than {rules.NOTICEABLE:g} with an interval below 0", rules.better_heldout, SUITE, "topk:5"),
        claim("full_fits_all", "full attention reaches 100 % training accuracy on all 8 tasks", DOCUMENTS,
              "every run reaches τ on the training split of every task (95 %; 100 % itself is not waited for)",
              rules.fits_all, SUITE),
        claim("full_generalises_on_4", "full attention generalises on 4 of the 8 tasks", DOCUMENTS,
              "on exactly 4 tasks more than half of the runs reach 95 % on held-out rows", rules.generalises_on, SUITE, 4),
        *(
            Claim(f"short_{name}", f"{name} attention falls short on even pairs", DOCUMENTS, size, (SHORT[size],),
                  f"{name}:5 is decided slower than full attention",
                  _read(rules.slower, (SHORT[size],), "even_pairs", (f"{name}:5",)))
            for name in ("banded", "block")
        ),
        claim("parity_near_chance", "parity stays near chance", DOCUMENTS,
              f"held-out accuracy at the end of every run is at most {rules.NEAR:g} above chance and the majority class",
              rules.near_chance, "parity_check", ("full", "topk:5", *FIXED)),
        claim("listops_1_3", "top-k attention is about 1.3 times faster on ListOps", DOCUMENTS,
              "decided faster, with an estimate of 1.13 to 1.50", rules.about, "listops", "topk:5", 1.3, 1.15),
        claim("dispersion",
              "the dispersion of the keys that top-k attention keeps is smaller than that of all keys under full attention (δ_h < δ_s)",
              ABSTRACT,
              "over the tasks, the ratio at the end of training between the models of the two masks; in one model's own scores it "
              "is below 1 by definition", rules.smaller_dispersion, SUITE, "topk:5"),
        *(
            claim(f"lipschitz_{quantity}", f"top-k attention has lower Lipschitz estimates: {words}", ABSTRACT, "over the tasks, the ratio",
                  rules.smaller_lipschitz, SUITE, "topk:5", quantity)
            for quantity, words in (
                ("gradient_initial", "gradient norm at the same initial weights"),
                ("gradient", "gradient norm at the same training loss"),
                ("trajectory", "change of the loss along the path, at the same training loss"),
            )
        ),
    ]  # fmt: skip


def _unsearched() -> list[Claim]:
    """The setting that no search chose, a task and size each that was planned with it."""
    return [
        Claim(f"first_{task}", f"without a search (gain 1, rate 0.3), top-k attention learns faster on {task}", OURS, size, (name,),
              "the interval, or the sign test", _read(rules.faster, (name,), task, "topk:5"))
        for task in TWO
        for size, name in UNSEARCHED.items()
        if size == "reduced size" or task == "even_pairs"
    ]  # fmt: skip


def _ablations() -> list[Claim]:
    """The claims that were asked of two tasks at the reduced size."""
    size, rule = (
        "reduced size",
        f"topk:5 is decided faster than full attention for each of them on {' and '.join(TWO)}",
    )

    def robust(name: str, words: str, variants: tuple[str, ...]) -> Claim:
        return Claim(
            f"robust_{name}", words, ABSTRACT, size, variants, rule, lambda s: rules.robust(s, TWO, "topk:5", variants)
        )

    def first(name: str, words: str, *variants: str) -> Claim:
        return Claim(
            f"first_{name}", f"without a search (gain 1, rate 0.3), top-k attention learns faster, {words}", OURS, size, variants, rule,
            lambda s: rules.robust(s, TWO, "topk:5", variants),
        )  # fmt: skip

    sweep = ("topk:1", "topk:3", "topk:5", "topk:9")
    return [
        robust("activation", "robust to the activation (relu, gelu, mish)", ("reduced", "activation_gelu", "activation_mish")),
        robust("optimizer", "robust to the optimiser (SGD, Adam)", ("reduced", "optimizer_adam")),
        robust("depth", "robust to depth (2, 3, 6 blocks)", ("depth_2", "reduced", "depth_6")),
        robust("heads", "robust to the number of heads (1, 4)", ("reduced", "heads_4")),
        robust("bilinear", "top-k attention learns faster in the bilinear form (judged apart)", ("form_bilinear",)),
        Claim("large_k", "top-k attention with a large k (15 of 20 keys) behaves like full attention", DOCUMENTS, size, ("k_sweep",),
              f"on both tasks the interval of the speed-up lies within 1/{rules.ALIKE:g} to {rules.ALIKE:g}",
              _read(rules.like_full, ("k_sweep",), TWO, "topk:15", sweep)),
        Claim("tuned_rate", "top-k attention learns faster also where each mask has its own learning rate", OURS,
              size, tuple(RATES), "on both tasks; the rate (0.03, 0.1, 0.3, 1) chosen for each mask on seeds 3 and 4, compared on seeds "
              "0 to 2", lambda stored: rules.tuned(stored, TWO, "topk:5", RATES, CHOOSING_SEEDS)),
        *_unsearched(),
        first("activation", "whatever the activation (relu, gelu, mish)", "theory", "first_gelu", "first_mish"),
        first("optimizer", "also with Adam", "first_adam"),
        first("depth", "whatever the depth (2, 3, 6 blocks)", "first_depth_2", "theory", "first_depth_6"),
        first("heads", "whatever the number of heads (1, 4)", "theory", "first_heads_4"),
        first("bilinear", "also in the bilinear form", "first_bilinear"),
    ]  # fmt: skip


def _by_task() -> list[Claim]:
    return [
        Claim(f"topk_faster_{task}", f"top-k attention learns faster on {task}", ABSTRACT, size, (name,),
              "the interval, or the sign test", _read(rules.faster, (name,), task, "topk:5"), task)
        for task in SUITE
        for size, read in TIERS.items()
        for name in (read[task == "listops"],)
    ]  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    *(claim for pair in zip(*map(_of_size, TIERS), strict=True) for claim in pair),
    *_ablations(),
    *_by_task(),
)
