"""Checkpoints load where the package is not installed, and keep their own behaviour."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from hf_semfocus import (
    SemFocusConfig,
    SemFocusForMaskedLM,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
    SemFocusModel,
)
from hf_semfocus.data import build_tokenizer

from .contract import AUTO, CLASSES, batch, make, shuffled
from .isolated import OWN_STRATEGY, run

IDS = [[2, 3, 3, 2, 1, 3, 2], [3, 3, 2, 2, 0, 0, 0]]
ATTENTION = [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]]
INPUTS = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(ATTENTION)}
AUTO_CLASSES = {
    "AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
}  # fmt: skip


def config(**fields):
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    return SemFocusConfig(**sizes | {"mask": "topk:2+sink:1"} | fields)


def answer(model):
    with torch.no_grad():
        return model.eval()(**INPUTS)[0]


def save(model, folder: Path) -> Path:
    """Save a model beside what it answers."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    torch.save(answer(model), folder / "answer.pt")
    return folder


LOAD = f"""
import torch, transformers
from pathlib import Path
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTokenClassification
INPUTS = dict(input_ids=torch.tensor({IDS}), attention_mask=torch.tensor({ATTENTION}))
def check(auto, folder, expected=None):
    model = auto.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    with torch.no_grad():
        out = model(**INPUTS)[0]
    expected = torch.load(Path(expected or folder) / "answer.pt")
    assert torch.equal(out, expected), (out - expected).abs().max()
    return model
"""


@pytest.fixture
def classifier(tmp_path):
    torch.manual_seed(0)
    fields = {
        "id2label": {0: "even", 1: "odd"}, "label2id": {"even": 0, "odd": 1}, "position_embedding_type": "sinusoidal",
    }  # fmt: skip
    folder = save(SemFocusForSequenceClassification(config(**fields)), tmp_path / "classifier")
    build_tokenizer("parity_check").save_pretrained(folder)
    return folder


def every_field(folder):
    """Code that loads models of every class with normalizers and QK-norm, with global tokens and attended padding; and with centroids."""
    sharp = {"normalizer": "sparsemax", "qk_norm": True, "qk_norm_scale": 2.0}
    padded = {"num_global_tokens": 2, "attend_padding": True, "pad_to_multiple_of": 4, "mask": "banded:3;ends=shift"}
    models = [shuffled(make(cls, **fields)) for cls in CLASSES for fields in (sharp, padded)]
    learnt = make(SemFocusModel, "cluster:3+topp:0.3+lsh:3").train()
    learnt(**batch())
    code = ""
    for number, model in enumerate([*models, learnt.eval()]):
        place = folder / f"model-{number}"
        model.save_pretrained(place)
        with torch.no_grad():
            torch.save((batch(), model(**batch())[0]), place / "answer.pt")
        code += f"""
inputs, expected = torch.load({str(place / "answer.pt")!r})
model = transformers.{AUTO[type(model)].__name__}.from_pretrained({str(place)!r}, trust_remote_code=True)
assert torch.equal(model(**inputs)[0], expected), {type(model).__name__!r}
"""
    return code


def test_every_head_loads_in_a_process_without_the_package_and_without_network(classifier, tmp_path):
    base = save(SemFocusModel(config(mask="random:2;seed=3", attention_form="bilinear")), tmp_path / "base")
    tokens = save(SemFocusForTokenClassification(config(norm_position="pre", num_labels=3)), tmp_path / "tokens")
    masked = save(SemFocusForMaskedLM(config(layer_masks=["topk:2", "banded:3"])), tmp_path / "masked")
    run(
        LOAD
        + f"""
assert type(AutoConfig.from_pretrained({str(base)!r}, trust_remote_code=True)).__name__ == "SemFocusConfig"
check(AutoModel, {str(base)!r})
check(AutoModelForTokenClassification, {str(tokens)!r})
masked = check(AutoModelForMaskedLM, {str(masked)!r})
assert masked.decoder.weight is masked.get_input_embeddings().weight
assert type(AutoModel.from_pretrained({str(masked)!r}, trust_remote_code=True)).__name__ == "SemFocusModel"
model = check(AutoModelForSequenceClassification, {str(classifier)!r})
assert type(AutoModel.from_pretrained({str(classifier)!r}, trust_remote_code=True)).__name__ == "SemFocusModel"
model.save_pretrained({str(tmp_path / "again")!r})
from transformers import pipeline
answers = pipeline("text-classification", model={str(classifier)!r}, trust_remote_code=True)(["0 1 1", "1 0 0 0 1"])
assert all(one["label"] in ("even", "odd") for one in answers), answers
try:
    import hf_semfocus
except ImportError:
    pass
else:
    raise AssertionError("the package could be imported")
"""
        + every_field(tmp_path),
        tmp_path / "first machine",
    )
    # What was loaded remotely and saved again loads remotely again, as any class.
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert set(saved["auto_map"]) >= AUTO_CLASSES
    run(
        LOAD
        + f"""
check(AutoModelForSequenceClassification, {str(tmp_path / "again")!r}, expected={str(classifier)!r})
AutoModel.from_pretrained({str(tmp_path / "again")!r}, trust_remote_code=True)
""",
        tmp_path / "second machine",
    )


def test_auto_map_lists_everything_and_points_at_one_file(classifier):
    saved = json.loads((classifier / "config.json").read_text())
    assert set(saved["auto_map"]) == AUTO_CLASSES
    assert {reference.split(".")[0] for reference in saved["auto_map"].values()} == {"modeling_semfocus"}
    text = "".join(path.read_text() for path in classifier.glob("*.py"))
    assert "hf_semfocus.model" not in text.replace(":mod:`hf_semfocus.model`", "")


def test_users_own_auto_map_entries_survive_a_save(tmp_path):
    own = config()
    own.auto_map = {"AutoModel": "modeling_semfocus.Old", "AutoModelForMultipleChoice": "my_head.MyHead"}
    own.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert saved["AutoModelForMultipleChoice"] == "my_head.MyHead"
    assert saved["AutoModel"] == "modeling_semfocus.SemFocusModel"


@pytest.fixture
def own_strategy(tmp_path, monkeypatch):
    """A user's module `my_masks`, imported."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "my_masks.py").write_text(OWN_STRATEGY)
    monkeypatch.syspath_prepend(source)
    yield importlib.import_module("my_masks")
    sys.modules.pop("my_masks")
    from hf_semfocus.model import mask_registry

    mask_registry._REGISTRY.pop("even")


def test_own_strategy_ships_and_same_named_folders_keep_their_own_behaviour(own_strategy, tmp_path):
    first, second = tmp_path / "a" / "model", tmp_path / "b" / "model"
    save(SemFocusModel(config(mask="even:2")), first)
    assert (first / "custom_my_masks.py").is_file()
    # The second checkpoint has the same folder name and a strategy of the same name that does something else.
    changed = OWN_STRATEGY.replace("distance % 2 == 0", "distance % 2 == 1")
    Path(own_strategy.__file__).write_text(changed)
    importlib.reload(own_strategy)
    save(SemFocusModel(config(mask="even:2")), second)
    assert not torch.equal(torch.load(first / "answer.pt"), torch.load(second / "answer.pt"))
    run(
        LOAD
        + f"""
one = check(AutoModel, {str(first)!r})
two = check(AutoModel, {str(second)!r})
with torch.no_grad():
    assert torch.equal(one(**INPUTS)[0], torch.load({str(first / "answer.pt")!r}))
two.save_pretrained({str(tmp_path / "again" / "model")!r})
check(AutoModel, {str(tmp_path / "again" / "model")!r}, expected={str(second)!r})
""",
        tmp_path / "machine",
    )
    # Saved from the shipped copy it still says which module to import where the package is preferred to remote code.
    assert json.loads((tmp_path / "again" / "model" / "config.json").read_text())["mask_sources"] == {
        "even": "my_masks"
    }
    said = run(
        f"""
import hf_semfocus
from transformers import AutoModel
try:
    AutoModel.from_pretrained({str(tmp_path / "again" / "model")!r}, trust_remote_code=True)
except ValueError as error:
    print(error)
""",
        tmp_path / "machine with the package",
        package=True,
    )
    assert "`import my_masks` before loading it, or, if the checkpoint holds custom_my_masks.py" in said


def test_own_strategy_that_cannot_ship_is_loud_and_says_what_to_import(own_strategy, tmp_path):
    Path(own_strategy.__file__).write_text("from . import sibling\n")
    model = SemFocusModel(config(mask="even:2"))
    with pytest.warns(UserWarning, match=r"'even'.*relative imports.*'my_masks'"):
        model.save_pretrained(tmp_path / "model")
    from hf_semfocus.model import mask_registry

    kept = mask_registry._REGISTRY.pop("even")
    with pytest.raises(ValueError, match=r"unknown mask strategy 'even'.*`import my_masks`"):
        AutoModel.from_pretrained(tmp_path / "model")
    mask_registry._REGISTRY["even"] = kept
    assert torch.equal(answer(AutoModel.from_pretrained(tmp_path / "model")), answer(model))


def test_with_the_package_imported_any_order_of_loads_and_reloads_works(classifier, tmp_path):
    out = run(
        f"""
import importlib, torch
from transformers import AutoModel, AutoModelForSequenceClassification
folder = {str(classifier)!r}
inputs = dict(input_ids=torch.tensor({IDS}), attention_mask=torch.tensor({ATTENTION}))
def check():
    for trust in (False, True):
        model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=trust)
        with torch.no_grad():
            assert torch.equal(model(**inputs).logits, torch.load(folder + "/answer.pt"))
    return type(model).__module__
# Remote first, then the package, then the package again, then reloaded from nothing.
print(type(AutoModel.from_pretrained(folder, trust_remote_code=True)).__module__.split(".")[0])
import hf_semfocus
print(check())
importlib.reload(hf_semfocus)
importlib.reload(hf_semfocus.model.mask_registry)
importlib.reload(hf_semfocus.model.mask_positions)
print(check())
for name in [name for name in sys.modules if name.split(".")[0] == "hf_semfocus"]:
    del sys.modules[name]
import hf_semfocus
print(check())
""",
        tmp_path / "machine",
        package=True,
    )
    assert out.split() == ["transformers_modules", *["hf_semfocus.model.modeling_semfocus"] * 3]


@pytest.mark.parametrize(
    "encode",
    [
        lambda source: b"\xef\xbb\xbf" + source.encode(),
        lambda source: ("# coding: latin-1\n" + source.replace("even distance", "even distance à")).encode("latin-1"),
        lambda source: source.replace("import torch\n", "import torch\n\x0cx = '\u2028'\n").encode(),
        lambda source: source.replace("\n", "\r\n").encode(),
    ],
    ids=["byte order mark", "latin-1", "form feed", "carriage returns"],
)
def test_own_strategy_is_read_as_python_reads_it(encode, own_strategy, tmp_path):
    Path(own_strategy.__file__).write_bytes(encode(OWN_STRATEGY))
    importlib.reload(own_strategy)
    folder = save(SemFocusModel(config(mask="even:2")), tmp_path / "model")
    run(LOAD + f"check(AutoModel, {str(folder)!r})", tmp_path / "machine")


def test_what_cannot_ship_is_known_before_training(own_strategy, monkeypatch):
    from hf_semfocus import parse_mask
    from hf_semfocus.model.shipping import check_ships

    mask, file = parse_mask("even:2+sink:1"), Path(own_strategy.__file__)
    check_ships([mask, parse_mask("topk:5")])
    for name in ("my-masks.py", "my masks.py", "my.masks.py", "my_mas\N{LATIN SMALL LIGATURE FI}.py"):
        monkeypatch.setattr(own_strategy, "__file__", str(file.rename(file.with_name(name))))
        file = file.with_name(name)
        with pytest.raises(ValueError, match=f"'even'.*my_masks.Even.*{name}.*can be imported"):
            check_ships([mask])
    for name in ("2masks.py", "class.py", "маски.py"):  # custom_2masks can be imported
        monkeypatch.setattr(own_strategy, "__file__", str(file.rename(file.with_name(name))))
        file = file.with_name(name)
        check_ships([mask])
    for source, words in {
        "from . import sibling\n": "relative imports",
        "import hf_semfocus\n": "import hf_semfocus",
        "from hf_semfocus import SemFocusConfig\n": "imports SemFocusConfig",
        'x = """\nfrom .other import this\n"""\n': "from .other import",
        "def broken(:\n": "no Python",
    }.items():
        file.write_text(source)
        with pytest.raises(ValueError, match=words):
            check_ships([mask])
