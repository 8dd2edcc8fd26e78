"""Saving and loading in one process: bit-equal answers, buffers, dtypes, devices, heads on a trained encoder."""

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModel

from hf_semfocus import SemFocusConfig, SemFocusModel, parse_mask

from .contract import same_tensors, shuffled
from .test_models import all_forms, draw_ids, small


@all_forms
def test_every_form_reloads_to_bit_equal_answers(form, tmp_path):
    model = shuffled(small(mask="topk:3+sink:1", **form))
    model.save_pretrained(tmp_path)
    loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(loaded.eval()(draw_ids(2, 6))[0], model(draw_ids(2, 6))[0])
    assert same_tensors(loaded.state_dict(), model.state_dict())
    assert loaded.config._attn_implementation == "semfocus"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_that_are_not_saved_are_right_after_loading(dtype, tmp_path):
    model = small(position_embedding_type="sinusoidal", position_std=0.3)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert not any("table" in name for name in file.keys())  # noqa: SIM118  # not a dictionary
    loaded = SemFocusModel.from_pretrained(tmp_path, dtype=dtype)
    assert torch.equal(loaded.embeddings.positions.table.to(dtype), model.embeddings.positions.table.to(dtype))
    ids = draw_ids(2, 6)
    states = loaded(ids).last_hidden_state
    assert states.dtype == dtype
    assert torch.equal(states, model.to(dtype)(ids).last_hidden_state)


def test_dtype_and_implementation_can_be_chosen_when_loading(tmp_path):
    small().save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded.config._attn_implementation == "eager"
    # As in every Transformers model, the implementation is not part of a checkpoint.
    loaded.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config._attn_implementation == "semfocus"


@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "flex_attention", "no_such_thing"])
def test_implementations_that_would_ignore_the_mask_are_refused(name, tmp_path):
    words = f"'{name}' would ignore the mask strategies of SemFocusModel"
    with pytest.raises(ValueError, match=words):
        SemFocusModel(SemFocusConfig(attn_implementation=name))
    model = small()
    with pytest.raises(ValueError, match=words):
        model.set_attn_implementation(name)
    assert model.config._attn_implementation == "semfocus"
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=words):
        AutoModel.from_pretrained(tmp_path, attn_implementation=name)


def test_a_mask_can_be_changed_when_loading(tmp_path):
    small(mask="full").save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, mask="topk:2")
    weights = loaded(draw_ids(1, 6), output_attentions=True).attentions[0]
    assert ((weights > 0).sum(-1) == 2).all()
    loaded = AutoModel.from_pretrained(tmp_path, layer_masks=["banded:3", "topk:1"])
    first, second = loaded(draw_ids(1, 6), output_attentions=True).attentions
    assert torch.equal(first[0, 0] > 0, parse_mask("banded:3").on_positions(6))
    assert ((second > 0).sum(-1) == 1).all()
    with pytest.raises(ValueError, match="got 0"):
        AutoModel.from_pretrained(tmp_path, mask="topk:0")


def test_saving_into_its_own_folder_twice(tmp_path):
    model = small()
    model.save_pretrained(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    SemFocusModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
