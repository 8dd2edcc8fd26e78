"""Data sets pushed with `push_to_hub` and loaded by someone who has only `datasets`: the same data, or the repository as it was."""

from typing import Any

import datasets
import pytest
from huggingface_hub import DatasetCard

from hf_semfocus.data import load_task, task_info

from .client import Client, ClientError, client

pytestmark = pytest.mark.slow

OPTIONS = {"length": 12, "train_size": 30, "validation_size": 10, "test_size": 20}
# One task of each kind; ranges, trees (`depth`) and longer splits ride along.
TASKS: dict[str, dict[str, Any]] = {
    "stack_manipulation": {**OPTIONS, "length_splits": [20]},
    "modular_arithmetic_brackets": {**OPTIONS, "length": [8, 12], "pooling": "cls"},
    "listops": {**OPTIONS, "length": [8, 20]},
}
LOAD = """
    import datasets

    def described(rows):
        types = {field.name: str(field.type) for field in rows.data.schema}
        return {"features": rows.features.to_dict(), "types": types, "rows": rows.to_list()}

    data = datasets.load_dataset(repo)
    result = {split: described(rows) for split, rows in data.items()}
"""


@pytest.fixture(scope="module")
def publisher(hub, tmp_path_factory):
    """A process with hf_semfocus that can push."""
    with client(hub.url, tmp_path_factory.mktemp("publisher"), package=True) as made:
        made.run("""
            from hf_semfocus.data import generate, load_task
            from hf_semfocus.data.cards import card_of
            from hf_semfocus.data.options import check_options
            from huggingface_hub import DatasetCard, HfApi
        """)
        yield made


@pytest.fixture
def stranger(hub, tmp_path):
    """A process without hf_semfocus and with empty caches."""
    with client(hub.url, tmp_path / "stranger", package=False) as made:
        with pytest.raises(ClientError, match="No module named 'hf_semfocus'"):
            made.run("import hf_semfocus")
        yield made


def push(publisher: Client, repo: str, task: str, **options: object) -> None:
    publisher.run(
        "load_task(task, **options).push_to_hub(repo)", repo=repo, task=task, options={**TASKS[task], **options}
    )


def made_here(task: str) -> dict[str, dict]:
    data = load_task(task, **TASKS[task])
    return {
        split: {
            "features": rows.features.to_dict(),
            "types": {field.name: str(field.type) for field in rows.data.schema},
            "rows": rows.to_list(),
        }
        for split, rows in data.items()
    }


def test_a_stranger_loads_what_was_pushed(hub, publisher, stranger):
    for task in TASKS:
        push(publisher, f"user/{task}", task)
        loaded = stranger.run(LOAD, repo=f"user/{task}")
        expected = made_here(task)
        assert list(loaded) == list(expected)
        assert loaded == expected
        features = datasets.Features.from_dict(loaded["train"]["features"])
        labels = (
            features["labels"] if isinstance(features["labels"], datasets.ClassLabel) else features["labels"].feature
        )
        assert labels.names == list(task_info(task).labels)
        streamed = stranger.run(
            "result = list(datasets.load_dataset(repo, split='test', streaming=True))", repo=f"user/{task}"
        )
        assert streamed == expected["test"]["rows"]


@pytest.mark.parametrize("task", ["stack_manipulation", "modular_arithmetic_brackets"])
def test_the_card_before_the_data(hub, publisher, stranger, task):
    repo = f"user/card-{task}"
    card = publisher.run(
        """
        data = load_task(task, **options)
        card = DatasetCard(card_of(data, check_options(task, options)))
        HfApi().create_repo(repo, repo_type="dataset")
        card.push_to_hub(repo)
        data.push_to_hub(repo)
        result = card.content
        """,
        repo=repo,
        task=task,
        options=TASKS[task],
    )
    content = stranger.run(
        "from huggingface_hub import DatasetCard; result = DatasetCard.load(repo).content", repo=repo
    )
    published = DatasetCard(content)
    assert published.text == DatasetCard(card).text
    assert f"load_task('{task}'" in published.text
    data = published.data.to_dict()
    kind = task_info(task).kind.replace("_", "-").replace("sequence", "text")
    assert data["task_categories"] == [kind]
    assert data["pretty_name"] == task
    sizes = {split["name"]: split["num_examples"] for split in data["dataset_info"]["splits"]}
    expected = made_here(task)
    assert sizes == {split: len(rows["rows"]) for split, rows in expected.items()}
    assert stranger.run(LOAD, repo=repo) == expected


def test_the_card_after_the_data(hub, publisher, stranger):
    task = "stack_manipulation"
    push(publisher, "user/late-card", task)
    publisher.run(
        "DatasetCard(card_of(load_task(task, **options), check_options(task, options))).push_to_hub(repo)",
        repo="user/late-card",
        task=task,
        options=TASKS[task],
    )
    assert stranger.run(LOAD, repo="user/late-card") == made_here(task)


def test_a_generated_folder_uploaded(hub, publisher, stranger):
    task = "modular_arithmetic_brackets"
    publisher.run(
        """
        generate(task, "generated", **options)
        HfApi().create_repo(repo, repo_type="dataset")
        HfApi().upload_folder(repo_id=repo, repo_type="dataset", folder_path="generated")
        """,
        repo="user/folder",
        task=task,
        options=TASKS[task],
    )
    assert sorted(hub.state("user/folder")[1]) == ["README.md", "test.parquet", "train.parquet", "validation.parquet"]
    assert stranger.run(LOAD, repo="user/folder") == made_here(task)


def test_a_repeated_push_changes_nothing(hub, publisher, tmp_path):
    push(publisher, "user/again", "stack_manipulation")
    before = hub.state("user/again")
    # Made anew, not taken from the cache: equal rows must make equal files.
    push(publisher, "user/again", "stack_manipulation", cache_dir=str(tmp_path))
    assert hub.state("user/again") == before
