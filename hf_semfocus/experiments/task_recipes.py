"""`recipe:` in an experiment's task: that task's hyperparameters come from another experiment file."""

from collections.abc import Callable, Mapping
from typing import Any

from .options import merged

KEY = "recipe"
# How a task learns. Everything else in a recipe is how big it was when they were chosen, how long it trained, what was recorded.
HYPERPARAMETERS = (
    "optimizer", "learning_rate", "lr_decay", "momentum", "weight_decay", "batch_size", "max_grad_norm",
)  # fmt: skip
MODEL_SIZES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings",
)  # fmt: skip
# They serve the recipe's masks, which nobody takes from it.
NOT_TAKEN = ("imports",)

Settings = Mapping[str, Any]


def with_recipe(task: str, settings: Settings, defaults: Settings, read: Callable[[str], Settings]) -> dict[str, Any]:
    """The settings of a task in an experiment with `defaults`, without `recipe`: what it named stands in its place.

    From the weakest to the strongest:

    1. the recipe's sizes, budget and what it records: all that is no hyperparameter, wherever it stands in the recipe;
    2. the experiment's `defaults`: so one recipe, chosen at a reduced size, serves every size;
    3. the recipe's hyperparameters (`HYPERPARAMETERS` of `training`, fields of `model` other than `MODEL_SIZES`), which
       belong to the task and so go over what the experiment says for all of them;
    4. what stands beside `recipe`.

    The recipe's name, note, masks, seeds and imports are not taken.

    Args:
        task: its name, for messages.
        settings: its entry in the experiment.
        defaults: of the experiment.
        read: gives the settings of `task` in the file that `recipe` names.

    Example:
        >>> recipe = {"length": 20, "training": {"learning_rate": 0.1, "epochs": 40}}
        >>> with_recipe("even_pairs", {"recipe": "a.yaml"}, {"length": 40}, lambda name: recipe)
        {'training': {'epochs': 40, 'learning_rate': 0.1}}
    """
    if KEY not in settings:
        return dict(settings)
    name = settings[KEY]
    if not isinstance(name, str) or not name:
        raise ValueError(f"task {task}: recipe is {name!r}; allowed: the path of an experiment's YAML file")
    weak, strong = _parts(read(name))
    beside = {key: value for key, value in settings.items() if key != KEY}
    return merged(_not_in(defaults, weak), strong, beside)


def _parts(recipe: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe without, and with nothing but, its hyperparameters."""
    weak: dict[str, Any] = {key: value for key, value in recipe.items() if key not in NOT_TAKEN}
    strong: dict[str, Any] = {}
    for group in ("training", "model"):
        if group in recipe:
            learns = {
                key: value
                for key, value in recipe[group].items()
                if (key in HYPERPARAMETERS if group == "training" else key not in MODEL_SIZES)
            }
            weak[group] = {key: value for key, value in recipe[group].items() if key not in learns}
            strong[group] = learns
    return weak, strong


def _not_in(defaults: Settings, weak: Settings) -> dict[str, Any]:
    """What of `weak` the `defaults` do not say."""
    left = {}
    for key, value in weak.items():
        if key not in defaults:
            left[key] = value
        elif isinstance(value, Mapping) and isinstance(defaults[key], Mapping):
            left[key] = _not_in(defaults[key], value)
    return left
