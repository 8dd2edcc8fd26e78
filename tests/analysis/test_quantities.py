"""The registry: each quantity once, whoever measures; a new one is a line; β by hand, by counting, and in parts."""

import io
import math

import pytest
import torch
from rich.console import Console

from hf_semfocus.analysis import QUANTITIES, analyze, capture, capture_scores, probe_quantities, queries_per_key
from hf_semfocus.analysis.quantities import Collected, Quantity
from hf_semfocus.report.analysis_tables import terminal_tables

from .test_analyze import entry, make_rows
from .test_capture import make_batch, make_model


def test_queries_per_key_by_hand():
    keep = torch.tensor([[[[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]]]], dtype=torch.bool)
    assert queries_per_key(keep).tolist() == [[[3, 1, 1, 0]]]
    valid = torch.tensor([[[[1, 1, 1, 0]]]], dtype=torch.bool)
    found = queries_per_key(keep, valid)
    assert found[..., :3].tolist() == [[[3, 1, 1]]]
    assert found[0, 0, 3].isnan()  # padding is no key that nobody keeps


def test_queries_per_key_of_a_model_is_that_of_counting():
    counted = []
    for row in make_rows():
        for layer in capture_scores(make_model("topk:3"), {"input_ids": torch.tensor([row["input_ids"]])}):
            for head in layer.keep[0].tolist():
                counted += [sum(query[key] for query in head) for key in range(len(head))]
    found = analyze(make_model("topk:3"), make_rows(), batch_size=3, eps=[0.1], directions=1)
    measured = entry(found, "queries_per_key")
    assert (measured["n"], measured["max"]) == (len(counted), max(counted))
    assert measured["mean"] == pytest.approx(sum(counted) / len(counted)) == pytest.approx(3)
    assert measured["q95"] == pytest.approx(torch.tensor(counted, dtype=torch.float64).quantile(0.95).item())


@pytest.mark.parametrize("elements", [1, 20, 10**6])
@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_a_layer_give_what_the_whole_gives(elements, causal, monkeypatch):
    model, batch = make_model("topk:3"), make_batch()
    if causal:
        length = batch["input_ids"].shape[1]
        batch["attention_mask"] = (
            batch["attention_mask"].bool()[:, None, None] & torch.ones(length, length).bool().tril()
        )
    whole = capture_scores(model, batch)
    monkeypatch.setattr(capture, "CHUNK_ELEMENTS", elements)
    seen = Collected(QUANTITIES)
    capture.visit_scores(model, batch, seen)
    for layer, parts in zip(whole, seen.layers, strict=True):
        found = torch.cat(parts["queries_per_key"])
        assert torch.equal(found.nan_to_num(-1), queries_per_key(layer.keep, layer.valid).nan_to_num(-1))
        assert found.nansum() == layer.keep.sum()


def test_a_new_quantity_is_a_line(monkeypatch):
    def most_kept(seen):
        return seen.part.scores.masked_fill(~seen.part.keep, -math.inf).amax(-1)

    monkeypatch.setitem(QUANTITIES, "largest_score", Quantity(most_kept))
    found = analyze(make_model("topk:3"), make_rows(2), eps=[0.1], directions=1)
    rows = [{"input_ids": torch.tensor([row["input_ids"]])} for row in make_rows(2)]
    expected = max(layer.scores.max().item() for row in rows for layer in capture_scores(make_model("topk:3"), row))
    assert entry(found, "largest_score")["max"] == pytest.approx(expected, rel=1e-5)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal_tables({"points": [{"name": "a", "moment": "trained", **found}], "between": []}))
    assert "largest_score" in console.export_text()


def test_the_probe_and_analyze_agree_where_some_queries_leave_nothing_out():
    """Rows of 2 and of 5 tokens under topk:3: the first keep all, and count neither as improved nor as not."""
    torch.manual_seed(0)
    short, long = torch.randint(1, 11, (3, 2)), torch.randint(1, 11, (3, 5))
    ids = torch.cat([torch.nn.functional.pad(short, (0, 3)), long])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    model = make_model("topk:3", attention_gain=3.0)
    found = analyze(model, [{"input_ids": row[row > 0].tolist()} for row in ids], eps=[0.1], batch_size=6)
    overall = found["conditions"][-1]
    assert (overall["n"], overall["n_improvement"]) == (3 * 2 * 3 * 7, 3 * 2 * 3 * 5)
    assert probe_quantities(model, batch)["improvement_share"] == pytest.approx(overall["improvement_share"], abs=1e-9)
    assert probe_quantities(model, {"input_ids": long})["improvement_share"] == pytest.approx(
        overall["improvement_share"], abs=1e-9
    )
