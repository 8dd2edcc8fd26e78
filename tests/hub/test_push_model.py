"""Models and tokenizers pushed to the Hub, loaded by someone who has only Transformers; cards pushed with them, whole or not at all."""

import os
import re
import signal
from pathlib import Path

import pytest

from ..model.isolated import OWN_STRATEGY
from .client import Client, ClientError, client
from .server import Hub

pytestmark = pytest.mark.slow

# Every piece of code that a client runs may use these names.
COMMON = """
    import importlib, os, shutil, signal, sys, torch, transformers
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

    IDS = torch.tensor([[2, 3, 3, 2, 1, 3, 2], [3, 3, 2, 2, 0, 0, 0]])
    ATTENTION = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])

    def answer(model):
        with torch.no_grad():
            return model.eval()(input_ids=IDS, attention_mask=ATTENTION)[0].tolist()
"""
PUBLISHER = """
    from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification, SemFocusModel
    from hf_semfocus.data import build_tokenizer
    from hf_semfocus.model import modeling_semfocus
    from hf_semfocus.model.shipping import AUTO_MAP
    from huggingface_hub import HfApi, ModelCard

    def build(cls, seed=0, **fields):
        small = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, mask="topk:2+sink:1")
        torch.manual_seed(seed)
        model = cls(SemFocusConfig(**{**small, **fields}))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        return model

    def run(*arguments):
        from hf_semfocus.cli.main import main
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return ended.code or 0
"""
# A run of two epochs; its seed gives other weights.
TRAIN = """
    options = ["--length", 12, "--train-size", 200, "--test-size", 100, "--layers", 1, "--epochs", 2, "--batch-size", 50]
    options += ["--set", "validation_size=60", "model.hidden_size=16", "training.stop_early=false"]
    assert run("train", "even_pairs", "--mask", "topk:3", "--seed", seed, *options, "--output", folder) == 0
"""


@pytest.fixture(scope="module")
def clients(hub, tmp_path_factory):
    """A publisher, who has hf_semfocus, and a stranger, who has not and starts with empty caches."""
    folder = tmp_path_factory.mktemp("clients")
    with (
        client(hub.url, folder / "publisher", package=True) as publisher,
        client(hub.url, folder / "stranger", package=False) as stranger,
    ):
        publisher.run(COMMON)
        publisher.run(PUBLISHER)
        stranger.run(COMMON)
        with pytest.raises(ClientError, match="No module named 'hf_semfocus'"):
            stranger.run("import hf_semfocus")
        yield publisher, stranger


@pytest.fixture(scope="module")
def publisher(clients):
    return clients[0]


@pytest.fixture(scope="module")
def stranger(clients):
    return clients[1]


@pytest.fixture(scope="module")
def checkpoint(publisher):
    """The publisher's folder of a finished run."""
    publisher.run(TRAIN, seed=0, folder="run")
    return "run"


def load(client: Client, repo: str, auto: str = "AutoModel", revision: str | None = None) -> list:
    """What a model of the Hub answers in a client."""
    return client.run(
        """
        model = getattr(transformers, auto).from_pretrained(repo, revision=revision, trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
        result = answer(model)
        """,
        repo=repo,
        auto=auto,
        revision=revision,
    )


def files(hub: Hub, repo: str) -> tuple[str, dict[str, str]]:
    return hub.state(repo, "models")


def commits(hub: Hub, repo: str) -> int:
    """All commits of a repository, those of no branch too."""
    return len(hub.repositories["models", repo].commits)


def test_every_class_pushed_as_transformers_does_it(hub, publisher, stranger):
    pushed = publisher.run("""
        result = {}
        for auto, reference in AUTO_MAP.items():
            if auto == "AutoConfig":
                continue
            fields = dict(id2label={0: "even", 1: "odd"}, label2id={"even": 0, "odd": 1}, position_embedding_type="sinusoidal")
            model = build(getattr(modeling_semfocus, reference.partition(".")[2]), **fields)
            model.push_to_hub(f"user/{auto}")
            result[auto] = answer(model)
        build_tokenizer("even_pairs").push_to_hub("user/AutoModelForSequenceClassification")
    """)
    assert len(pushed) >= 3
    for auto, expected in pushed.items():
        assert load(stranger, f"user/{auto}", auto) == expected
    # A classifier is a base model too; the tokenizer and the pipeline come from the same repository.
    told = stranger.run(
        """
        base = AutoModel.from_pretrained(repo, trust_remote_code=True)
        config = AutoConfig.from_pretrained(repo, trust_remote_code=True)
        words = AutoTokenizer.from_pretrained(repo)("0 1 1")["input_ids"]
        said = pipeline("text-classification", model=repo, trust_remote_code=True)(["0 1 1", "1 0"])
        result = [type(base).__name__, type(config).__name__, words, [one["label"] for one in said]]
        """,
        repo="user/AutoModelForSequenceClassification",
    )
    assert told[:3] == ["SemFocusModel", "SemFocusConfig", [4, 5, 5]]
    assert set(told[3]) <= {"even", "odd"}
    # What came from the Hub goes to the Hub again, from where there is no hf_semfocus, and loads as before.
    auto = "AutoModelForSequenceClassification"
    stranger.run(
        """
        AutoModelForSequenceClassification.from_pretrained(repo, trust_remote_code=True).push_to_hub("user/again")
        """,
        repo=f"user/{auto}",
    )
    assert load(stranger, "user/again", auto) == pushed[auto]
    assert load(stranger, "user/again") == load(stranger, f"user/{auto}")


def test_own_strategies_and_repositories_of_the_same_last_name(publisher, stranger):
    publisher.run(
        """
        from pathlib import Path
        sys.path.insert(0, os.getcwd())
        Path("my_masks.py").write_text(source)
        import my_masks
        model = build(SemFocusModel, mask="even:4")
        model.push_to_hub("first/own")
        first = answer(model)
        # Another strategy of the same name, in a repository of the same last name.
        Path("my_masks.py").write_text(source.replace("% 2 == 0", "% 2 == 1"))
        importlib.reload(my_masks)
        model = build(SemFocusModel, mask="even:4")
        model.push_to_hub("second/own")
        second = answer(model)
        """,
        source=OWN_STRATEGY,
    )
    first, second = publisher.run("result = first, second")
    assert first != second
    assert load(stranger, "first/own") == first
    assert load(stranger, "second/own") == second
    assert load(stranger, "first/own") == first
    stranger.run("AutoModel.from_pretrained('second/own', trust_remote_code=True).push_to_hub('third/own')")
    assert load(stranger, "third/own") == second


def test_a_checkpoint_with_its_card_in_one_commit(hub, publisher, stranger, checkpoint):
    repo = "user/carded"
    card = "run('card', folder, '--repo', repo, '--push')"
    assert publisher.run(f"result = {card}", folder=checkpoint, repo=repo) == 0
    first, listed = files(hub, repo)
    assert commits(hub, repo) == 2  # the empty one, and ours
    names = set(listed)
    wanted = {"README.md", "config.json", "curves.png", "model.safetensors", "modeling_semfocus.py", "run.json"}
    assert names >= wanted | {"tokenizer.json", "tokenizer_config.json"}
    assert not [name for name in names if name.startswith(".") or "/" in name]
    # The card's own example, run by a stranger.
    told = stranger.run(
        """
        import re
        from huggingface_hub import ModelCard
        card = ModelCard.load(repo)
        (block,) = re.findall("```python\\n(.*?)```", card.text, re.DOTALL)
        said = {"print": lambda value: said.update(told=value)}
        exec(block, said)
        result = [card.data.eval_results[0].metric_value, card.data.model_name, said["told"], answer(said["answer"].model)]
        """,
        repo=repo,
    )
    accuracy, name, said, logits = told
    assert name == "carded"
    assert said[0]["label"] in ("0", "1")
    history, answers = publisher.run(
        """
        import json
        rows = [json.loads(line) for line in open(f"{folder}/history.jsonl")]
        model = AutoModelForSequenceClassification.from_pretrained(f"{folder}/model")
        result = rows, answer(model)
        """
    )
    assert accuracy == history[-1]["heldout_accuracy"]
    assert logits == answers
    # Again: nothing to do, and no commit.
    assert publisher.run(f"result = {card}") == 0
    assert files(hub, repo)[0] == first
    assert commits(hub, repo) == 2
    # Another run in its place: the old revision stays what it was, by its id and by a tag.
    publisher.run("HfApi().create_tag(repo, tag='v1')")
    publisher.run(TRAIN, seed=1, folder="later")
    assert publisher.run(f"result = {card}", folder="later") == 0
    auto = "AutoModelForSequenceClassification"
    new = load(stranger, repo, auto)
    assert new != answers
    assert [load(stranger, repo, auto, revision) for revision in (first, "v1", "main")] == [answers, answers, new]
    # A branch leaves main alone.
    branch = "result = run('card', folder, '--repo', repo, '--push', '--revision', 'dev')"
    assert publisher.run(branch, folder=checkpoint) == 0
    assert [load(stranger, repo, auto, revision) for revision in ("dev", "main")] == [answers, new]
    # Transformers' own push keeps the card and everything that it does not write.
    before = publisher.run("result = ModelCard.load(repo).content")
    publisher.run("model.push_to_hub(repo)")
    assert publisher.run("result = ModelCard.load(repo).content") == before
    assert set(files(hub, repo)[1]) == names


@pytest.mark.parametrize(("point", "status", "filled"), [("put", 507, True), ("commit", 500, False)])
def test_a_failed_push_leaves_the_repository_as_it_was(hub, publisher, point, status, filled):
    repo = f"user/failed-{point}"
    publisher.run(
        """
        from hf_semfocus.hub.publish import push
        from pathlib import Path

        def checkpoint(seed):
            # Weights that the server does not have yet, or it would ask for no upload.
            folder = Path(f"made-{repo.replace('/', '-')}-{seed}")
            build(SemFocusForSequenceClassification, seed=hash((repo, seed)) % 2**31).save_pretrained(folder)
            build_tokenizer("even_pairs").save_pretrained(folder)
            return folder
        """,
        repo=repo,
    )
    if filled:
        publisher.run("push(checkpoint(0), repo)")
    else:
        publisher.run("HfApi().create_repo(repo)")
    before = files(hub, repo)
    for refused, words in (
        (403, f"hf auth login`, or use a token that may write to {repo}"),
        (status, "again completes it"),
    ):
        hub.orders[point][:] = [refused]
        with pytest.raises(ClientError, match=f"OSError: made-.*{refused}.*{words}"):
            publisher.run("push(checkpoint(1), repo)")
        assert files(hub, repo) == before
    assert publisher.run("result = push(checkpoint(1), repo).changed")
    after = files(hub, repo)
    assert after[0] != before[0]
    assert not publisher.run("result = push(checkpoint(1), repo).changed")
    assert files(hub, repo) == after


def test_what_an_earlier_push_left_goes_with_the_next(hub, publisher, stranger):
    """One file of weights after several, several after one, a mask of one's own and then none; other files stay."""
    repo = "user/replaced"
    publisher.run(
        """
        from hf_semfocus.hub.publish import push
        from pathlib import Path

        def pushed(model, name, **options):
            model.save_pretrained(name, **options)
            changed = push(Path(name), repo).changed
            return answer(model), changed, push(Path(name), repo).changed
        """,
        repo=repo,
    )
    plain = "pushed(build(SemFocusForSequenceClassification, seed={0}), 'plain-{0}')"
    pieces = "pushed(build(SemFocusForSequenceClassification, seed={0}), 'pieces-{0}', max_shard_size='1KB')"
    own = """
        Path("replaced_masks.py").write_text(source.replace('"even"', '"uneven"'))
        sys.path.insert(0, os.getcwd())
        import replaced_masks
        result = pushed(build(SemFocusForSequenceClassification, mask="uneven:4"), "own")
    """
    kept = "HfApi().upload_file(path_or_fileobj=b'[]', path_in_repo='notes.json', repo_id=repo)"
    publisher.run(f"HfApi().create_repo(repo); {kept}")
    for step in (pieces.format(1), plain.format(2), own, pieces.format(3)):
        code = step if step is own else f"result = {step}"
        expected, changed, again = publisher.run(code, source=OWN_STRATEGY)
        assert [changed, again] == [True, False]
        assert load(stranger, repo, "AutoModelForSequenceClassification") == expected
        names = files(hub, repo)[1]
        assert ("model.safetensors" in names) is (step not in (pieces.format(1), pieces.format(3)))
        assert ("model.safetensors.index.json" in names) is ("model.safetensors" not in names)
        assert ("custom_replaced_masks.py" in names) is (step is own)
        assert "notes.json" in names


# A child of the publisher, so that it need not import everything again; its number of the process.
CHILD = """
    from hf_semfocus.hub.publish import push
    from pathlib import Path

    pid = os.fork()
    if pid == 0:
        try:
            push(Path(folder), repo)
        except OSError as error:
            os._exit(12 if "412" in str(error) else 1)
        os._exit(0)
    result = pid
"""
BIG = """
    # So many bytes that they do not fit into the sockets: the server has a part of them when the process is killed.
    model = build(SemFocusForSequenceClassification, seed=seed, vocab_size=800_000)
    model.save_pretrained(folder)
    build_tokenizer("even_pairs").save_pretrained(folder)
"""


@pytest.mark.parametrize("point", ["put", "commit"])
def test_a_push_killed_on_its_way(hub, publisher, point):
    repo, folder = f"user/killed-{point}", f"big-{point}"
    publisher.run(BIG, folder=folder, seed=1)
    publisher.run("HfApi().create_repo(repo)", repo=repo)
    before = files(hub, repo)
    pause = hub.pause(point)
    publisher.run(CHILD, repo=repo, folder=folder)
    assert pause.reached.wait(30)
    assert files(hub, repo) == before
    status = publisher.run("os.kill(pid, signal.SIGKILL); result = os.waitpid(pid, 0)[1]")
    assert os.WTERMSIG(status) == signal.SIGKILL
    pause.over.set()
    # The server comes to its end with what it has: half a file is none, a commit that it has whole may still be made.
    names = publisher.run("result = sorted(path.name for path in Path(folder).iterdir())")
    hub.wait_until_idle()
    left = sorted(files(hub, repo)[1])
    assert left in ([], names)
    if point == "put":
        assert left == []
    publisher.run("push(Path(folder), repo)")
    after = files(hub, repo)
    assert sorted(after[1]) == names
    publisher.run("push(Path(folder), repo)")
    assert files(hub, repo) == after


def test_two_pushes_at_once_are_not_mixed(hub, publisher):
    repo = "user/two"
    for name, seed in (("one", 2), ("other", 3)):
        publisher.run(BIG.replace("800_000", "8"), folder=name, seed=seed)
    publisher.run("HfApi().create_repo(repo)", repo=repo)
    pause = hub.pause("commit")
    publisher.run(CHILD, folder="one")
    assert pause.reached.wait(30)
    publisher.run("push(Path('other'), repo)")
    after = files(hub, repo)
    pause.over.set()
    assert os.waitstatus_to_exitcode(publisher.run("result = os.waitpid(pid, 0)[1]")) == 12
    assert files(hub, repo) == after


def test_what_the_command_line_refuses_is_not_pushed(hub, publisher, checkpoint):
    # `--private` is kept, or refused where the repository is public.
    private = "result = run('card', folder, '--repo', repo, '--push', '--private')"
    assert publisher.run(private, folder=checkpoint, repo="user/secret") == 0
    assert hub.repositories["models", "user/secret"].private
    assert publisher.run(private) == 0
    publisher.run("HfApi().create_repo('user/open')")
    assert publisher.run(private, repo="user/open") == 2
    assert not files(hub, "user/open")[1]
    # A card whose head the Hub does not take stops the push before anything is uploaded.
    publisher.run(
        """
        shutil.copytree(Path(folder) / "model", "spoilt")
        card = Path("spoilt/README.md")
        card.write_text(card.read_text().replace("value: ", "value: .nan # "))
        """
    )
    with pytest.raises(ClientError, match="finite number"):
        publisher.run("push(Path('spoilt'), 'user/spoilt')")
    assert not files(hub, "user/spoilt")[1]


def test_what_the_guide_says_about_publishing(publisher, stranger, checkpoint):
    guide = (Path(__file__).parents[2] / "docs/guides/publishing.md").read_text(encoding="utf-8")
    (section,) = re.findall("^## To the Hub\n(.*?)^## ", guide, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^semfocus (.*?)(?:\s+#.*)?$", section, re.MULTILINE)
    (block,) = re.findall("```python\n(.*?)```", section, re.DOTALL)
    assert len(commands) == 2
    publisher.run("shutil.copytree(folder, 'runs/one')", folder=checkpoint)
    for command in commands:
        assert publisher.run("result = run(*words)", words=command.split()) == 0
    assert load(stranger, "user/name", "AutoModelForSequenceClassification") == publisher.run(
        "result = answer(AutoModelForSequenceClassification.from_pretrained('runs/one/model'))"
    )
    publisher.run(block)
    rows = "import datasets; result = len(datasets.load_dataset('user/even_pairs', split='test'))"
    assert stranger.run(rows) == 2000
