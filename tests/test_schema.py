"""Files of before are read as those of now, and text comes back from the numbers."""

import json

import pytest

from hf_semfocus.files import read_record
from hf_semfocus.hub.run_json import RunFacts
from hf_semfocus.schema import Epoch, ExperimentRecord, ReachRecord, RunResult
from hf_semfocus.summary_schema import Summary
from hf_semfocus.text import reach_text


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [
        (19, 19, "all"),
        (6, 6, "±6 of 20 positions"),
        (3, 0, "−3 to +0 of 20 positions"),
        (4, 4, "own block of 5"),
        (19, 2, "3 to 8 of 20 positions"),
        (19, 2, "7 of 20 positions"),
    ],
)
def test_a_reach_that_was_stored_as_words(left, right, text):
    reach = ReachRecord.model_validate({"left": left, "right": right, "sees_all": text == "all", "text": text})
    assert reach_text(reach) == text
    assert reach_text(ReachRecord.model_validate(reach.to_json())) == text


def test_a_result_without_the_fields_of_today_is_read(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"status": "failed", "error": "it broke", "of_another_time": 1}))
    result = read_record(path, RunResult, "")
    assert (result.status, result.error, result.machine, result.initial_attention) == ("failed", "it broke", {}, None)


def test_what_json_has_no_number_for_is_none():
    row = {"epoch": 1, "train_accuracy": None, "heldout_accuracy": 0.5, "train_seconds": 1, "seconds": 2}
    epoch = Epoch.model_validate_json(json.dumps({**row, "train_loss": float("nan"), "analysis_loss": float("inf")}))
    assert (epoch.train_loss, epoch["analysis_loss"], epoch.get("analysis_norm")) == (None, None, None)
    assert json.loads(json.dumps(epoch.to_json(), allow_nan=False)) == {
        **row,
        "train_loss": None,
        "analysis_loss": None,
    }


@pytest.mark.parametrize("model", [RunResult, ExperimentRecord, Summary, RunFacts])
def test_a_newer_format_is_not_called_damaged(tmp_path, model):
    path = tmp_path / "some.json"
    path.write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"some\.json was written by a newer hf-semfocus: format 99; .* up to [12]$"):
        read_record(path, model, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "not JSON of its kind"),
        ("{}", "status is missing"),
        ('{"status": "reached", "reach": {"text": "own block"}}', "reach is"),
        ('{"status": "reached", "reach": {"text": "some"}}', "reach is"),
        ('{"status": "arrived"}', "status is 'arrived'"),
        ('{"status": "reached", "epochs_trained": "3"}', "epochs_trained is '3'"),
        ('{"status": "reached", "dispersion": {"full": {"mean": []}, "mask": {}}}', "dispersion.full.mean is '[]'"),
    ],
)
def test_a_damaged_file_is_one_line_with_the_file_the_field_and_the_remedy(tmp_path, text, words):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"result\.json is damaged: .*; restore it$") as caught:
        read_record(path, RunResult, "restore it")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
