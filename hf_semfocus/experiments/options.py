"""What a person types on a command line, as the values that specifications take."""

import re
from typing import Any

import yaml

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def parse_length(text: str) -> int | tuple[int, int]:
    """A length ("40") or an inclusive range ("500-600").

    >>> parse_length("40"), parse_length("500-600")
    (40, (500, 600))
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if match is None:
        raise ValueError(f"length is {text!r}; allowed: a whole number such as 40, or a range such as 500-600")
    low, high = match.groups()
    return int(low) if high is None else (int(low), int(high))


def parse_setting(text: str) -> tuple[list[str], Any]:
    """KEY=VALUE with dots in the key, the value typed as YAML types it (and 1e-3 as a number, which YAML 1.1 does not).

    >>> parse_setting("model.attention_form=bilinear")
    (['model', 'attention_form'], 'bilinear')
    >>> parse_setting("training.learning_rate=1e-3")
    (['training', 'learning_rate'], 0.001)
    >>> parse_setting("length=500-600")
    (['length'], (500, 600))
    """
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ValueError(f"--set got {text!r}; allowed: KEY=VALUE, such as model.hidden_act=gelu")
    if len(path) > 2 or (len(path) == 2 and path[0] not in ("model", "training", "task_options")):
        raise ValueError(
            f"--set got the key {key!r}; allowed: model.…, training.…, task_options.… or a field of the run"
        )
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"--set got the value {value!r} for {key}, which is not a YAML value") from None
    if path == ["length"] and isinstance(parsed, str):
        parsed = parse_length(parsed)
    if isinstance(parsed, str) and _NUMBER.fullmatch(parsed):
        parsed = float(parsed)
    return path, parsed
