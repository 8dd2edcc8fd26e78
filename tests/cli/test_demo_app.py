"""`semfocus demo --serve`: what the app answers is what the model answers, in Chromium too; a bad input is a sentence on the page."""

import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

import hf_semfocus  # noqa: F401  (registers the Auto classes)
from hf_semfocus.cli.demo_app import Checkpoints, build, launch
from hf_semfocus.cli.main import main
from hf_semfocus.comparison.compare import compare
from hf_semfocus.comparison.engines import Wanted, make_engine
from hf_semfocus.experiments.experiment import Experiment

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
        ("listops", "full", "[MAX 2 9", ["brackets"]),
        ("listops", "full", "2 3", ["one expression"]),
        ("listops", "full", "[MAX ]", ["well-formed"]),
        ("listops", "full", "] [MAX 2", ["brackets"]),
    ],
)
def test_a_bad_input_is_a_sentence(checkpoints, task, mask, text, words):
    with pytest.raises(ValueError) as raised:
        checkpoints.answer(f"{task} · full · seed 0", mask, text)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--serve"),
        (["--serve", "--output", "OUT"], "--output"),
        (["--serve"], "missing"),
        (["--serve", "--port", "70000"], "70000"),
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
    assert page.get_by_text("Traceback").count() == 0
    ask("01" * 7)
    page.get_by_text("too long").wait_for()
    page.get_by_label("Checkpoint").click()
    page.get_by_role("option", name="listops · full · seed 0").click()
    page.get_by_text("Symbols: 0 1 2 3").wait_for()
    ask("[MAX 2 9 ]")
    answered("listops", "full", "[MAX 2 9 ]")
    assert troubles == []
    assert [url for url in elsewhere if not url.startswith(("data:", "blob:"))] == []
