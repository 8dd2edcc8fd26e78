"""`recipe:`: what a task takes from another experiment, what wins, and what is refused."""

import pytest
import yaml

from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.experiments.task_recipes import with_recipe

RECIPE = {
    "name": "found",
    "tasks": {
        "even_pairs": {
            "model": {"embedding_std": 0.5},
            "training": {"learning_rate": 0.1, "batch_size": 50, "epochs": 40},
        }
    },
    "masks": ["full", "banded:3"],
    "seeds": [7],
    "defaults": {
        "length": 20,
        "train_size": 500,
        "model": {"num_hidden_layers": 3, "hidden_size": 32},
        "training": {"max_grad_norm": 0.3, "analysis_every": 1},
    },
}


@pytest.fixture
def experiment(tmp_path):
    """Writes recipes and an experiment beside them, and reads the experiment."""

    def read(own, defaults=None, recipes=None):
        for name, values in ({"tasks/found.yaml": RECIPE} if recipes is None else recipes).items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(yaml.safe_dump(values), encoding="utf-8")
        values = {"name": "big", "tasks": {"even_pairs": own}, "masks": ["full", "topk:5"], "seeds": [0]}
        (tmp_path / "big.yaml").write_text(yaml.safe_dump({**values, "defaults": defaults or {}}), encoding="utf-8")
        return Experiment.from_yaml(tmp_path / "big.yaml")

    return read


def spec(experiment):
    return experiment.spec("even_pairs", "topk:5", 0)


def test_hyperparameters_come_from_the_recipe_and_sizes_where_nothing_else_says_them(experiment):
    made = experiment({"recipe": "tasks/found.yaml"})
    assert (made.name, made.masks, made.seeds) == ("big", ("full", "topk:5"), (0,))
    found = spec(made)
    assert found.training.learning_rate == 0.1
    assert found.training.max_grad_norm == 0.3, "a recipe's defaults are its settings too"
    assert found.model == {"embedding_std": 0.5, "num_hidden_layers": 3, "hidden_size": 32}
    assert (found.length, found.train_size, found.training.epochs) == (20, 500, 40)


def test_the_experiments_sizes_win_wherever_the_recipe_says_its_own(experiment):
    sizes = {"length": 40, "train_size": 5000, "model": {"num_hidden_layers": 5}, "training": {"epochs": 300}}
    for own, defaults in (({}, sizes), (sizes, {})):
        found = spec(experiment({"recipe": "tasks/found.yaml", **own}, defaults))
        assert (found.length, found.train_size, found.training.epochs) == (40, 5000, 300)
        assert found.model["num_hidden_layers"] == 5
        assert (found.training.learning_rate, found.training.batch_size) == (0.1, 50)


def test_hyperparameters_go_over_the_defaults_and_under_what_stands_beside_the_recipe(experiment):
    defaults = {
        "training": {"learning_rate": 3.0, "analysis_every": 0},
        "model": {"embedding_std": 9.0, "hidden_act": "gelu"},
    }
    found = spec(experiment({"recipe": "tasks/found.yaml", "training": {"batch_size": 25}}, defaults))
    assert (found.training.learning_rate, found.training.batch_size, found.training.analysis_every) == (0.1, 25, 0)
    assert (found.model["embedding_std"], found.model["hidden_act"]) == (0.5, "gelu")


def test_what_is_stored_are_the_resolved_values(experiment):
    made = experiment({"recipe": "tasks/found.yaml"}, {"length": 40})
    assert "recipe" not in str(made.to_dict())
    assert Experiment.from_dict(made.to_dict()) == made
    assert "recipe" not in spec(made).to_dict()


def test_a_recipe_may_name_another(experiment):
    recipes = {
        "tasks/a.yaml": {**RECIPE, "tasks": {"even_pairs": {"recipe": "b.yaml", "training": {"batch_size": 10}}}},
        "tasks/b.yaml": RECIPE,
    }
    found = spec(experiment({"recipe": "tasks/a.yaml"}, recipes=recipes))
    assert (found.training.learning_rate, found.training.batch_size, found.length) == (0.1, 10, 20)


@pytest.mark.parametrize(
    ("own", "recipes", "words"),
    [
        ({"recipe": "tasks/none.yaml"}, {}, ["even_pairs", "tasks/none.yaml", "No such file"]),
        ({"recipe": ""}, {}, ["recipe is ''", "allowed"]),
        ({"recipe": 3}, {}, ["recipe is 3", "allowed"]),
        ({"recipe": "."}, {}, ["even_pairs", "is a folder"]),
        (
            {"recipe": "a.yaml"},
            {"a.yaml": {**RECIPE, "tasks": {"parity_check": {}}}},
            ["a.yaml", "parity_check", "even_pairs"],
        ),
        ({"recipe": "a.yaml"}, {"a.yaml": {**RECIPE, "taks": 1}}, ["a.yaml", "taks", "did you mean 'tasks'"]),
        (
            {"recipe": "a.yaml"},
            {"a.yaml": {**RECIPE, "tasks": {"even_pairs": {"training": {"learning_rat": 1.0}}}}},
            ["a.yaml", "learning_rat", "did you mean 'learning_rate'"],
        ),
        ({"recipe": "a.yaml"}, {"a.yaml": {**RECIPE, "tasks": {"even_pairs": {"training": 3}}}}, ["a.yaml", "training", "3"]),
        ({"recipe": "a.yaml"}, {"a.yaml": ["x"]}, ["a.yaml", "list"]),
        (
            {"recipe": "a.yaml"},
            {"a.yaml": {**RECIPE, "tasks": {"even_pairs": {"recipe": "a.yaml"}}}},
            ["circle"],
        ),
        (
            {"recipe": "a.yaml"},
            {
                "a.yaml": {**RECIPE, "tasks": {"even_pairs": {"recipe": "b.yaml"}}},
                "b.yaml": {**RECIPE, "tasks": {"even_pairs": {"recipe": "a.yaml"}}},
            },
            ["circle"],
        ),
        ({"recipe": "big.yaml"}, {}, ["circle"]),
    ],
    ids=lambda value: None,
)  # fmt: skip
def test_one_line_says_what_is_wrong(experiment, own, recipes, words):
    with pytest.raises(ValueError) as caught:
        experiment(own, recipes=recipes)
    told = str(caught.value)
    assert "\n" not in told
    for word in words:
        assert word in told


def test_settings_without_a_recipe_are_left_alone():
    own = {"length": 20}
    assert with_recipe("even_pairs", own, {"length": 30}, read=None) == own
