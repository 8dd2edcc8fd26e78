"""The section of the report on what the theory predicts."""

from hf_semfocus.comparison.theory import PREDICTED
from hf_semfocus.report.html import render
from hf_semfocus.report.theory import matched_sentences, sentences
from hf_semfocus.report.theory_pictures import matched_picture, prediction_picture
from tests.comparison.test_theory import MASKS, TASKS, made
from tests.report.synthetic import update


def test_every_prediction_has_words_in_the_report(summary_of):
    summary = summary_of("quickstart")
    assert summary.analysis is None
    assert "What the theory predicts" not in render(summary)
    assert prediction_picture(summary) is None
    assert matched_picture(summary) is None
    tasks = [summary.tasks[0].model_copy(update={"name": task}) for task in TASKS]
    update(summary, analysis=made(-1), masks=MASKS, baseline="full", tasks=tasks)
    update(summary, runs=[], aggregates=[], speedups=[], reach=[])
    said = sentences(summary)
    assert len(said) == len(PREDICTED)
    assert said[0][0] == "as predicted"
    assert "ρ = -1.00 [-1.00, -1.00], 21 points on 7 tasks" in said[0][1]
    shown = [axes for axes in prediction_picture(summary).axes if axes.get_visible()]
    assert shown
    assert all(len(axes.lines) > 1 and axes.get_title(loc="left") for axes in shown)
    panels = matched_picture(summary).axes
    assert [axes.get_title(loc="left") or axes.get_title() for axes in panels[:7]] == TASKS
    # A median each for three masks and the baseline, however many pairs there are.
    assert [len(axes.lines) for axes in panels] == [4] * 7 + [0, 0]
    page = render(summary)
    assert "What the theory predicts" in page
    assert "How many keys" in page
    assert "is the gradient of the loss smaller under topk:5?</summary>" in page
    assert page.count("Of 7 tasks: open on 7.") == sum(
        "Of 7 tasks: open on 7." in text for _, text in matched_sentences(summary)
    )
