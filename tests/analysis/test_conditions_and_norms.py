"""Percentiles, both conditions and the norms: by hand, against numpy, and against the scores that a model computes."""

import math

import numpy as np
import pytest
import torch

from hf_semfocus.analysis import PAPER_TABLE, analyze, at_percentiles, beside_paper, lambda_w, lambda_x, norms

from .test_analyze import make_rows
from .test_capture import make_model

NAMES = ("dispersion_full", "dispersion_mask", "separation", "queries_per_key", "kept_keys")


def test_the_conditions_by_hand():
    # parity_check at the 75th percentile: (2.31 + ln 2 + ln 17.129) / 8.30
    assert lambda_w(8.30, 2.31, 0.062) == pytest.approx((2.31 + 0.693147 + 2.840776) / 8.30, rel=1e-6)
    # the same with β 8 and k 5: ln(8.30 · 2.6 · 17.12903 + 1.6) = ln 371.2445, ln 9.30 = 2.230014
    assert lambda_x(8.30, 2.31, 0.062, 8, 5) == pytest.approx((2.31 + 5.916861 - 2.230014) / 8.30, rel=1e-6)
    # even_pairs: the separation is too small for the dispersion
    assert lambda_w(2.03, 1.03, 0.009) > 1
    for undefined in ((0, 1, 1), (1, 1, 0), (1, 1, -0.5), (1, 1, math.nan), (1, math.nan, 1)):
        assert math.isnan(lambda_w(*undefined))
        assert math.isnan(lambda_x(*undefined, 5, 5))
    assert math.isnan(lambda_x(1, 1, 1, math.nan, 5))


def test_percentiles_are_numpys_and_the_separations_go_down():
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.rand(2, 3, 50, generator=generator) * 5 for name in NAMES}
    values["separation"][0, 0, :3] = torch.tensor([0.0, 1e-12, math.nan])
    found = at_percentiles(values)
    for name in ("dispersion_full", "dispersion_mask", "queries_per_key"):
        expected = np.percentile(values[name].double().numpy(), [75, 90, 95, 100])
        assert found[name] == pytest.approx(expected.tolist(), rel=1e-9)
    gaps = values["separation"].double().numpy()
    assert found["separation"][:3] == pytest.approx(np.nanpercentile(gaps, [25, 10, 5]).tolist(), rel=1e-9)
    assert found["separation"][3] == 1e-9
    assert found["kept_keys"] == pytest.approx(values["kept_keys"].mean().item())
    for place in range(4):
        own = [found[name][place] for name in NAMES[:3]]
        assert found["lambda_w"][place] == lambda_w(*own)
        assert found["lambda_x"][place] == lambda_x(*own, found["queries_per_key"][place], found["kept_keys"])


@pytest.mark.parametrize("mask", ["full", "banded:3"])
def test_a_mask_that_does_not_choose_has_no_condition(mask):
    found = analyze(make_model(mask), make_rows(), eps=[0.1], directions=1)["percentiles"]
    assert found["lambda_w"] == found["lambda_x"] == [None] * 4
    assert (found["separation"] == [None] * 4) == (mask == "full")
    assert found["queries_per_key"][3] == (9 if mask == "full" else 3)


def augmented(function, width):
    """[W | b] of an affine function, from its values at 0 and at the unit vectors."""
    at_zero = function(torch.zeros(1, width, dtype=torch.float64))[0]
    return torch.cat([(function(torch.eye(width, dtype=torch.float64)) - at_zero).T, at_zero[:, None]], dim=1)


@pytest.mark.parametrize("form", ["multihead", "bilinear"])
@pytest.mark.parametrize("bias", [True, False])
def test_norms_are_those_of_what_the_model_computes(form, bias):
    model = make_model(
        attention_form=form, attention_bias=bias if form == "multihead" else None, mlp_bias=bias
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # no bias stays 0
    found = {(entry["layer"], entry["head"], entry["norm"]): entry["value"] for entry in norms(model)}
    assert len(found) == 3 * (2 * 2 + 2)
    width = 16
    with torch.no_grad():
        for index, layer in enumerate(model.model.encoder.layers):
            points = torch.cat([torch.zeros(1, width), torch.eye(width)]).double()
            scores = layer.attention.scores(points[None])[0]
            for head in range(2):
                # The score of x and y is [x; 1]ᵀ M [y; 1].
                own = scores[head].numpy()
                matrix = np.empty((width + 1, width + 1))
                matrix[:width, :width] = own[1:, 1:] - own[1:, :1] - own[:1, 1:] + own[0, 0]
                matrix[:width, width], matrix[width, :width] = own[1:, 0] - own[0, 0], own[0, 1:] - own[0, 0]
                matrix[width, width] = own[0, 0]
                expected = np.linalg.svd(matrix, compute_uv=False)[0]
                assert found[index, head, "query_key"] == pytest.approx(expected, rel=1e-9)
                rows = slice(head * layer.attention.head_dim, (head + 1) * layer.attention.head_dim)
                value = augmented(layer.attention.value, width)[rows].numpy()
                assert found[index, head, "value"] == pytest.approx(np.linalg.svd(value)[1][0], rel=1e-9)
            for name in ("expand", "contract"):
                matrix = augmented(getattr(layer.mlp, name), width).numpy()
                assert found[index, None, name] == pytest.approx(np.linalg.svd(matrix)[1][0], rel=1e-9)


def test_another_model_has_no_norms():
    assert norms(torch.nn.Linear(2, 2)) == []


def point(mask, **percentiles):
    names = ("dispersion_full", "dispersion_mask", "separation", "queries_per_key")
    return {"own_mask": mask, "percentiles": {name: percentiles.get(name, [99.0] * 4) for name in names}}


def test_beside_the_paper_each_number_comes_from_its_own_model():
    table = PAPER_TABLE["even_pairs"]
    points = [
        point("full", dispersion_full=[scale * value for value in table["dispersion_full"]]) for scale in (1, 1.1, 1.3)
    ]
    own = {name: list(table[name]) for name in table if name != "dispersion_full"}
    own["queries_per_key"] = [9, 17, 26, 40]
    points.append(point("topk:5", **own))
    rows = {(row["quantity"], row["level"]): row for row in beside_paper("even_pairs", points)}
    first = rows["dispersion_full", 75]
    assert first["ours"] == pytest.approx([2.03, 2.233, 2.639])
    assert (first["ratio"], first["differs"]) == (pytest.approx(1.1), False)
    assert rows["queries_per_key", 75]["ratio"] == 1.5
    assert [key for key, row in rows.items() if row["differs"] and not key[0].startswith("lambda")] == [
        ("queries_per_key", 75)
    ]
    assert rows["separation", 25]["paper"] == 0.009
    assert rows["lambda_w", 90]["paper"] == pytest.approx(lambda_w(4.73, 2.84, 0.003))
    assert rows["lambda_x", 90]["median"] == pytest.approx(lambda_x(1.1 * 4.73, 2.84, 0.003, 17, 5))
    assert beside_paper("solve_equation", points) == []
    alone = {(row["quantity"], row["level"]): row for row in beside_paper("even_pairs", points[:1])}
    assert alone["dispersion_mask", 75]["median"] is None
    assert alone["lambda_w", 75]["ratio"] is None
