"""`semfocus demo --serve`: what the app answers is what the model answers, in Chromium too; a bad input is a sentence on the page."""

import re
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

import hf_semfocus  # noqa: F401  (registers the Auto classes)
from hf_semfocus.cli.demo_app import Checkpoints, build, launch, read, told
from hf_semfocus.cli.main import main
from hf_semfocus.comparison.compare import compare
from hf_semfocus.comparison.engines import Wanted, make_engine
from hf_semfocus.data.tasks import TASKS as TASKS_BY_NAME
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.training.run_files import Run

BITS = "0 1 1 0 1 0 0 1"
DEFAULTS = {
    "train_size": 100, "validation_size": 20, "test_size": 20,
    "model": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}, "training": {"epochs": 1},
}  # fmt: skip
TASKS = {"even_pairs": {"length": 12}, "listops": {"length": [4, 12]}, "reverse_string": {"length": 12}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("app") / "run"
    compare(
        Experiment("small", TASKS, ("full", "topk:2"), (0,), DEFAULTS), out, engine=make_engine("inline", Wanted())
    )
    return out


@pytest.fixture(scope="module")
def checkpoints(folder):
    return Checkpoints(folder)


def expected(folder, task, trained, text, loader=AutoModelForSequenceClassification, **changes):
    """Probabilities and attention (layers, queries, keys), by the model itself."""
    place = folder / "runs" / task / trained.replace(":", "-") / "seed-0" / "model"
    inputs = AutoTokenizer.from_pretrained(place)(text, return_tensors="pt")
    with torch.no_grad():
        found = loader.from_pretrained(place, **changes).eval()(**inputs, output_attentions=True)
    return found.logits.softmax(-1)[0], torch.stack([layer[0, 0] for layer in found.attentions])


@pytest.mark.parametrize(
    ("task", "trained", "mask", "typed", "text", "right"),
    [
        ("even_pairs", "topk:2", "topk:2", "01101001", BITS, "1"),
        ("even_pairs", "topk:2", " full ", BITS, BITS, "1"),
        ("listops", "full", "full", "[MAX 2 9[MIN 4 7]0]", "[MAX 2 9 [MIN 4 7 ] 0 ]", "9"),
    ],
)
def test_an_answer_is_the_models(checkpoints, folder, task, trained, mask, typed, text, right):
    said, figure = checkpoints.answer(f"{task} · {trained} · seed 0", mask, typed)
    shares, weights = expected(folder, task, trained, text, mask=mask.strip())
    first, *table = said.splitlines()
    assert first == f"**Prediction: {int(shares.argmax())}** (right answer: {right})"
    assert table[-1].split(" | ")[1:] == [f"{share:.3f}" for share in shares[:-1]] + [f"{shares[-1]:.3f} |"]
    drawn = [torch.tensor(axes.images[0].get_array()) for axes in figure.axes]
    torch.testing.assert_close(torch.stack(drawn), weights)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == text.split()


def test_a_sequence_is_answered_token_by_token(checkpoints, folder):
    said, _ = checkpoints.answer("reverse_string · full · seed 0", "full", "0 1 1")
    shares, _ = expected(folder, "reverse_string", "full", "0 1 1 [Q] [Q] [Q]", AutoModelForTokenClassification)
    first, *table = said.splitlines()
    assert first == f"**Prediction: {' '.join(map(str, shares[-3:].argmax(-1).tolist()))}** (right answer: 1 1 0)"
    assert len(table) == 3 + 3


@pytest.mark.parametrize(
    ("task", "mask", "text", "words"),
    [
        ("even_pairs", "full", "0 1 a", ["'a'", "0 1"]),
        ("even_pairs", "full", "  ", ["empty"]),
        ("even_pairs", "full", "01" * 7, ["14", "12"]),
        ("even_pairs", "topk:0", BITS, ["topk", "0"]),
        ("even_pairs", "", BITS, ["mask"]),
        ("listops", "full", "[MAX 2 9", ["well-formed"]),
        ("listops", "full", "2 3", ["well-formed"]),
        ("listops", "full", "[MAX ]", ["well-formed"]),
        ("listops", "full", "] [MAX 2", ["well-formed"]),
        ("listops", "full", "[SM [SM ] 2 ]", ["well-formed"]),
        ("even_pairs", "cluster:3", BITS, ["cluster:3", "trained"]),
        ("even_pairs", "topk:2+cluster:3", BITS, ["cluster:3", "trained"]),
        ("even_pairs", "full", None, ["empty"]),
        ("even_pairs", None, BITS, ["mask"]),
        ("even_pairs", 3, BITS, ["mask", "3"]),
        ("even_pairs", ["full"], BITS, ["mask", "full"]),
    ],
)
def test_a_bad_input_is_a_sentence(checkpoints, task, mask, text, words):
    with pytest.raises(ValueError) as raised:
        checkpoints.answer(f"{task} · full · seed 0", mask, text)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("task", "text", "right"),
    [
        ("modular_arithmetic", "*", None),
        ("modular_arithmetic_brackets", "( ( 1 - 3 ) + 4 ) ( ( 1 - 3 ) + 4 )", None),
        ("modular_arithmetic_brackets", "0 1 2 3 4 + - * ( )", None),
        ("solve_equation", "x", None),
        ("solve_equation", "x x x", None),
        ("solve_equation", "( x + 4 ) =", None),
        ("binary_addition", "+ + +", None),
        ("missing_duplicate_string", "0 1 _ .", None),
        ("listops", "7", "7"),
        ("listops", "[SM 5 [MAX 1 7 ] ]", "2"),
        ("bucket_sort", "3 0 1", "0 1 3"),
    ],
)
def test_a_right_answer_is_only_stated_for_an_input_of_the_language(task, text, right):
    assert read(TASKS_BY_NAME[task], text) == (text.split(), right)
    said = told(torch.eye(2)[:1], ["a", "b"], right)
    assert ("right" in said) == (right is not None)


@pytest.mark.parametrize(
    ("file", "content"),
    [("model.safetensors", ""), ("config.json", "{"), ("config.json", "{}"), ("tokenizer.json", "{")],
)
def test_a_damaged_checkpoint_is_a_sentence_with_its_folder(folder, tmp_path, file, content):
    copy = shutil.copytree(folder, tmp_path / "run")
    place = copy / "runs" / "even_pairs" / "full" / "seed-0" / "model"
    (place / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(place))):
        Checkpoints(copy).answer("even_pairs · full · seed 0", "full", BITS)


def test_the_app_opens_on_a_checkpoint_that_learnt(folder, monkeypatch):
    learnt = "listops · topk:2 · seed 0"
    label = property(lambda run: "reached" if run.key[:2] == ("listops", "topk:2") else "censored")
    monkeypatch.setattr(Run, "status", label)
    assert Checkpoints(folder).first == learnt
    monkeypatch.setattr(Run, "status", property(lambda run: "censored"))
    assert Checkpoints(folder).first == "even_pairs · full · seed 0"


def test_the_page_takes_what_is_cleared_or_long(folder):
    pytest.importorskip("gradio")
    calls = {call.fn.__name__: call.fn for call in build(folder).fns.values()}
    assert [part["__type__"] for part in calls["start"](None)] == ["update", "update"]
    for given in ((None, "full", BITS), ("even_pairs · full · seed 0", "topk:" + "9" * 3000 + "x", BITS)):
        said, drawn = calls["look"](*given)
        assert said.startswith("⚠️")
        assert len(said) < 500
        assert drawn["visible"] is False
    said, drawn = calls["look"]("even_pairs · full · seed 0", "full", BITS)
    assert "Prediction" in said
    assert drawn["visible"] is True


def test_a_run_directory_is_no_output(folder, capsys):
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(["demo", str(folder), "--output", str(folder)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2
    assert str(folder) in line
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--serve"),
        (["--serve", "--output", "OUT"], "--output"),
        (["--serve"], "missing"),
        (["--serve", "--port", "70000"], "70000"),
        (["--serve", "--port", "0"], "port is 0"),
    ],
)
def test_the_command_refuses(options, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "missing", *options])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_app_in_a_browser(folder):
    gradio = pytest.importorskip("gradio")
    playwright = pytest.importorskip("playwright.sync_api")
    app = build(folder)
    assert isinstance(app, gradio.Blocks)
    address = launch(app)
    try:
        with playwright.sync_playwright() as started:
            try:
                browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            except playwright.Error as error:
                pytest.skip(f"no Chromium (`playwright install chromium`): {str(error).splitlines()[0]}")
            _use(browser.new_page(viewport={"width": 1280, "height": 900}), address, folder)
            browser.close()
    finally:
        app.close()


def _use(page, address, folder):
    troubles, elsewhere = [], []
    page.set_default_timeout(120_000)  # a busy machine
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda asked: elsewhere.append(asked.url) if not asked.url.startswith(address) else None)
    page.goto(address)

    def ask(text):
        page.get_by_label("Input").fill(text)
        page.get_by_role("button", name="Predict").click()

    def answered(task, mask, text):
        shares, _ = expected(folder, task, "full", text, mask=mask)
        page.get_by_role("cell", name=f"{shares[0]:.3f}", exact=True).first.wait_for()
        page.get_by_text(f"Prediction: {int(shares.argmax())}").wait_for()

    page.get_by_text("Prediction:").wait_for()  # for the input that stands there at first
    ask(BITS)
    answered("even_pairs", "full", BITS)
    before = page.get_by_alt_text("plot").or_(page.locator("img")).first.get_attribute("src")
    page.get_by_label("Mask").fill("topk:1")
    page.get_by_label("Mask").press("Enter")
    answered("even_pairs", "topk:1", BITS)
    assert page.locator("img").first.get_attribute("src") != before
    ask("0 1 a")
    page.get_by_text("'a' is not a symbol").wait_for()
    page.locator("img").wait_for(state="detached")
    assert page.get_by_text("Traceback").count() == 0
    ask("01" * 7)
    page.get_by_text("too long").wait_for()
    page.get_by_label("Checkpoint").click()
    page.get_by_role("option", name="listops · full · seed 0").click()
    page.get_by_text("Symbols: 0 1 2 3").wait_for()
    ask("[MAX 2 9 ]")
    answered("listops", "full", "[MAX 2 9 ]")
    page.set_viewport_size({"width": 390, "height": 844})
    fits = "menu => menu.scrollWidth <= menu.clientWidth && menu.clientWidth > 200"
    assert page.get_by_label("Checkpoint").evaluate(fits)
    assert troubles == []
    assert [url for url in elsewhere if not url.startswith(("data:", "blob:"))] == []
