"""`recipes/architectures.py`: what sparse attention does in the architectures of the installed Transformers."""

import re

import pytest

from tests.recipes.recipe_modules import recipe

architectures = recipe("architectures")
KNOWN = dict(architectures.architectures())
ACCEPTED = dict.fromkeys(architectures.MASKS, "accepted")
REFUSED = dict.fromkeys(architectures.MASKS, "refused")


@pytest.mark.parametrize("name", ["olmo_hybrid", "jamba", "lfm2", "minimax", "deepseek_v3", "modernbert-decoder"])
def test_hybrids_and_mixtures_are_accepted_and_right(name):
    verdicts, held = architectures.examine(name, KNOWN[name])
    assert verdicts == ACCEPTED
    assert held.startswith("all keys, padding on the right")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba", "none has softmax attention"),
        ("longt5", "attention layers that did not call it: encoder.block.0.layer.0.LocalSelfAttention"),
        ("llava", "layers that did not run: model.vision_tower"),
        ("deepseek_v4", "keys that stand for several tokens"),
        ("deepseek_v32", "keys chosen by an indexer"),
        ("deberta", "does not go through the attention interface"),
    ],
)
def test_a_refusal_says_what_is_in_the_way(name, reason):
    verdicts, why = architectures.examine(name, KNOWN[name])
    assert verdicts == REFUSED
    assert reason in why


def test_only_positions_of_queries_are_refused_in_cross_attention():
    verdicts, _ = architectures.examine("bart", KNOWN["bart"])
    assert verdicts == ACCEPTED | {"banded:3": "refused"}


def test_the_page_has_nothing_wrong():
    page = architectures.PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^\| [\w.-]+ \| `\w+` \|", page, re.MULTILINE)) > 300
    assert architectures.WRONG not in page


@pytest.mark.long
def test_no_architecture_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(architectures, "PAGE", tmp_path / "architectures.md")
    assert architectures.main([]) == 0
