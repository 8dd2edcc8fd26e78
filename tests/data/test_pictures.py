"""Pictures show every symbol of the input and the answer."""

import re

import pytest

from hf_semfocus.data.pictures import draw_example
from hf_semfocus.data.tasks import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_an_example_is_drawn_with_its_answer(name, tmp_path):
    text, target = TASKS[name].example
    figure = draw_example(name)
    said = [item.get_text() for item in figure.axes[0].texts]
    assert [word for word in said if word not in ("input", "label", "output")] == [*text.split(), *target.split()]
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_a_text_of_ones_own():
    said = [item.get_text() for item in draw_example("parity_check", " ".join("1" * 30)).axes[0].texts]
    assert said.count("1") == 30
    assert said[-1] == "0"
    with pytest.raises(ValueError, match="not a symbol"):
        draw_example("parity_check", "2")


@pytest.mark.parametrize(
    ("name", "text"),
    [("even_pairs", ""), ("binary_addition", "+"), ("listops", "] [SM [MED [MAX [MIN 9 8 7 6 5 4 3 2 1 0")],
)
def test_what_is_no_input_is_refused_with_one_that_is(name, text):
    with pytest.raises(
        ValueError, match=rf"{name}: .* is no input of this task; one is '{re.escape(TASKS[name].example[0])}'"
    ):
        draw_example(name, text)
