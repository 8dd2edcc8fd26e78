"""What sparse attention does in each architecture of the installed Transformers.

python recipes/architectures.py                   # → docs/guides/architectures.md, about 10 minutes
python recipes/architectures.py llama jamba       # these alone, on the terminal

Each is built small and runs with its own attention first. With sparse attention it is then *accepted*, *refused* (with the
reason that `apply_attention` gives), or **wrong**: accepted, and yet one of the checks below fails that the model's own
attention passes on the same weights and inputs.
"""

import argparse
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from small_models import LENGTHS, architectures, small_inputs, small_model
from transformers import PreTrainedModel

from hf_semfocus import apply_attention, register_attention
from hf_semfocus.files import atomic_write

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "architectures.md"
#: Each mask, and the same with as many keys as there are: the model's own attention.
MASKS = {"topk:2": "topk:4096", "topk:2+sink:1": "topk:4096+sink:1", "banded:3": "banded:8193", "topp:0.5": "topp:1.0"}
# Transformers' eager attention rounds its softmax to fp32, in fp64 too.
TOLERANCE = 1e-4
WRONG = "**wrong**"

INTRODUCTION = """\
# Every architecture

What `apply_attention` does in each architecture that Transformers {version} has. Each is built small, with random weights, and runs with
its own attention first. `python recipes/architectures.py` writes this page, and fails if anything is wrong.

- *accepted*: every softmax attention layer that runs calls the sparse attention, and the checks in the last column hold. *All keys*: a
  mask that keeps every key gives the model's own (eager) output; *padding*: a padded text gives what it gives alone; *cache*: a text
  token by token gives what it gives at once. A check that the model's own attention does not pass on these inputs is left out.
- *refused*: by a `ValueError`, for the reason in the last column, and the model is as it was. *Layers that did not run* need inputs that
  this page does not make (images beside text, sound): with these as `probe={{…}}` the model may be accepted, as its parts are.
- *wrong*: accepted, and a check fails that the model's own attention passes.
"""


def output(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """The first tensor of floating point numbers that the model returns."""
    with torch.no_grad():
        made = model(**inputs, return_dict=True)
    tensors = [made[key] for key in ("logits", "last_hidden_state") if key in made and made[key] is not None] or [
        value for value in made.values() if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    return tensors[0]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(
        ((one - other).abs() <= TOLERANCE * max(1.0, other.abs().max().item())).all()
    )


def alone(model: torch.nn.Module, inputs: dict[str, Any], side: str) -> bool:
    """Whether a padded text gives what it gives alone; position ids are given where padding stands in front."""
    short = LENGTHS[1]
    one = {
        key: value[1:, :short] if key in ("input_ids", "attention_mask") else value[1:]
        for key, value in inputs.items()
    }
    padded = dict(inputs)
    if side == "left":
        for key in ("input_ids", "attention_mask"):
            padded[key] = torch.stack([inputs[key][0], inputs[key][1].roll(-short)])
        padded["position_ids"] = (padded["attention_mask"].cumsum(dim=-1) - 1).clamp_min(0)
    made, expected = output(model, padded)[1:], output(model, one)
    if made.shape[1:2] == inputs["input_ids"].shape[1:]:
        made = made[:, -short:] if side == "left" else made[:, :short]
    return close(made, expected)


def in_steps(model: torch.nn.Module, inputs: dict[str, Any]) -> bool:
    """Whether a text in pieces, against a cache, gives what it gives at once."""
    ids = inputs["input_ids"][:1]
    at_once = output(model, {"input_ids": ids, "use_cache": False})
    pieces, cache, start = [], None, 0
    for end in range(4, ids.shape[1] + 1):
        step = {"input_ids": ids[:, start:end], "use_cache": True}
        if cache is not None:
            step["cache"] = cache
        with torch.no_grad():
            made = model(**step, return_dict=True)
        cache, start = made.past_key_values, end
        pieces.append(made.logits)
    return close(torch.cat(pieces, dim=1), at_once)


def checks(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Callable[[], bool]]:
    """What must hold with sparse attention if it holds with the model's own."""
    takes = inspect.signature(model.forward).parameters
    by_name: dict[str, Callable[[], bool]] = {}
    if "attention_mask" in inputs:
        by_name["padding on the right"] = lambda: alone(model, inputs, "right")
        if "position_ids" in takes and not model.config.is_encoder_decoder:
            by_name["padding on the left"] = lambda: alone(model, inputs, "left")
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) and "input_ids" in inputs:
        by_name["cache"] = lambda: in_steps(model, inputs)
    return by_name


def passes(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:  # whatever a library raises for what it does not take
        return False


def examine(name: str, cls: type[PreTrainedModel]) -> tuple[dict[str, str], str]:
    """What each mask does, and the reason where one is refused or wrong. Raises what the model raises on its own."""
    model = small_model(name, cls)
    try:
        model.double()
        inputs = small_inputs(model)
        output(model, inputs)
    except RuntimeError:
        model = small_model(name, cls)
        inputs = small_inputs(model)
    own = "eager" if own_attention(model, "eager") else model.config._attn_implementation
    expected = output(model, inputs)
    if not expected.isfinite().all() or not close(output(model, inputs), expected):
        raise ValueError("its own output is not finite, or not the same twice")
    counts = torch.ones(expected.shape[:2], dtype=torch.bool)
    if "attention_mask" in inputs and expected.shape[:2] == inputs["attention_mask"].shape:
        counts = inputs["attention_mask"].bool()
    holds = [what for what, check in checks(model, inputs).items() if passes(check)]
    verdicts, reasons = {}, {}
    for mask, all_keys in MASKS.items():
        try:
            apply_attention(model, mask, probe=inputs)
        except ValueError as error:
            verdicts[mask], reasons[mask] = "refused", short(str(error), mask)
            continue
        wrong = (
            [] if passes(lambda: not output(model, inputs)[counts].equal(expected[counts])) else ["changes nothing"]
        )
        wrong += [what for what in holds if not passes(checks(model, inputs)[what])]
        model.set_attn_implementation(register_attention(all_keys))
        if not passes(lambda: close(output(model, inputs)[counts], expected[counts])):
            wrong.append("its own attention with all keys")
        verdicts[mask] = WRONG if wrong else "accepted"
        if wrong:
            reasons[mask] = ", ".join(wrong)
        own_attention(model, own)
    if not reasons:
        return verdicts, ", ".join(["all keys", *holds])
    if len(set(reasons.values())) == 1 and len(reasons) == len(MASKS):
        return verdicts, next(iter(reasons.values()))
    return verdicts, "; ".join(f"`{mask}`: {why}" for mask, why in reasons.items())


def own_attention(model: PreTrainedModel, name: str) -> bool:
    try:
        model.set_attn_implementation(name)
    except ValueError:
        return False
    return True


def short(message: str, mask: str) -> str:
    """A reason without what a reader of the table knows."""
    message = message.replace(f" with mask {mask!r}", "").replace(f"mask {mask!r} counts", "it counts")
    for start, end in (
        ("failed (ValueError: ", "); inputs that"), ("failed (", "); inputs that"), ("does not use it: ", "; if it needs"),
        ("set: it ", ""),
    ):  # fmt: skip
        if start in message:
            message = message.partition(start)[2]
            return (message.partition(end)[0] if end else message).partition("; allowed there")[0]
    return message


def page(rows: list[list[str]], unbuilt: dict[str, str]) -> str:
    """The guide: counts, a row for each architecture that ran, and the names of the others."""
    lines = [
        INTRODUCTION.format(version=transformers.__version__),
        "| | " + " | ".join(f"`{mask}`" for mask in MASKS) + " |",
        "|---|" + "---|" * len(MASKS),
    ]
    for verdict in ("accepted", "refused", WRONG):
        counts = [sum(row[2 + column] == verdict for row in rows) for column in range(len(MASKS))]
        lines.append(f"| {verdict.strip('*')} | " + " | ".join(map(str, counts)) + " |")
    header = ["architecture", "class", *(f"`{mask}`" for mask in MASKS), "what holds, or why not"]
    lines += ["", "## Each of them", "", "| " + " | ".join(header) + " |", "|---|" + "---|" * (len(header) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    lines += ["", "## Not run here", ""]
    groups = {
        "A library is missing": "ImportError",
        "Large even with small sizes": "it has ",
        "Inputs are needed that this page does not make": "no inputs",
    }
    left = dict(unbuilt)
    for title, sign in groups.items():
        names = [name for name, why in unbuilt.items() if sign in why]
        lines += [f"{title}: {', '.join(names)}.", ""]
        left = {name: why for name, why in left.items() if name not in names}
    lines += [
        f"Sizes or inputs of this page that do not fit the model, which fails with its own attention: {', '.join(left)}.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "architectures", nargs="*", help="names as in Transformers' configurations; none: all, into the page"
    )
    names = parser.parse_args(arguments).architectures
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    known = dict(architectures())
    for name in names:
        if name not in known:
            parser.error(f"unknown architecture {name!r}; allowed: {', '.join(known)}")
    rows, unbuilt = [], {}
    for name in names or known:
        try:
            verdicts, why = examine(name, known[name])
        except Exception as error:  # whatever a library raises for sizes that it does not take
            unbuilt[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
            print(f"{name}: not run: {unbuilt[name]}", flush=True)
            continue
        rows.append([name, f"`{known[name].__name__}`", *verdicts.values(), why])
        print(" | ".join(rows[-1]), flush=True)
    total = Counter(cell for row in rows for cell in row[2 : 2 + len(MASKS)])
    print(dict(total), "not run:", len(unbuilt))
    if not names:
        atomic_write(PAGE, page(rows, unbuilt))
    return 1 if total[WRONG] else 0


if __name__ == "__main__":
    sys.exit(main())
