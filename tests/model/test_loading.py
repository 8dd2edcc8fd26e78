"""Saving and loading in one process: bit-equal answers, buffers, dtypes, devices, heads on a trained encoder."""

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from hf_semfocus import (
    SemFocusConfig,
    SemFocusForMaskedLM,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
    SemFocusModel,
)

from .test_models import CLASSES, FORMS, all_forms, draw_ids, small

AUTO = {
    SemFocusModel: AutoModel,
    SemFocusForSequenceClassification: AutoModelForSequenceClassification,
    SemFocusForTokenClassification: AutoModelForTokenClassification,
    SemFocusForMaskedLM: AutoModelForMaskedLM,
}


def shuffled(model):
    """`model` with weights that no initialisation gives, the padding row of the embeddings among them."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("cls", CLASSES)
@all_forms
def test_every_head_reloads_to_bit_equal_answers(cls, form, tmp_path):
    model = shuffled(small(cls, mask="topk:3+sink:1", **form))
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    assert not list(tmp_path.glob("*.bin"))
    ids = draw_ids(2, 6)
    for auto in (cls, AUTO[cls]):
        loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
        assert type(loaded) is cls
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert torch.equal(loaded.eval()(ids)[0], model(ids)[0])
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
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


def test_a_head_on_a_saved_encoder_draws_only_itself(tmp_path):
    encoder = shuffled(small())
    encoder.save_pretrained(tmp_path)
    torch.manual_seed(0)
    model, info = SemFocusForSequenceClassification.from_pretrained(tmp_path, num_labels=4, output_loading_info=True)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], tensor), name
    bound = 12**-0.5
    assert 0.5 * bound < model.classifier.weight.abs().max() <= bound


def test_an_encoder_from_a_saved_classifier(tmp_path):
    classifier = shuffled(small(SemFocusForSequenceClassification))
    classifier.save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path)
    assert type(encoder) is SemFocusModel
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(classifier.model.state_dict()[name], tensor), name


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("form", FORMS[:3])
def test_construction_on_the_meta_device(cls, form):
    with torch.device("meta"):
        model = cls(SemFocusConfig(**form))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert {buffer.device.type for buffer in model.buffers()} <= {"meta"}


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
    with pytest.raises(ValueError, match="got 0"):
        AutoModel.from_pretrained(tmp_path, mask="topk:0")


def test_embeddings_can_be_resized(tmp_path):
    model = small(SemFocusForSequenceClassification, embedding_std=0.5)
    old = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(40, mean_resizing=False)
    assert model.config.vocab_size == 40
    assert torch.equal(model.get_input_embeddings().weight[:11], old)
    assert 0.4 < model.get_input_embeddings().weight[11:].std() < 0.6
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[39, 2, 20]])
    assert torch.equal(SemFocusForSequenceClassification.from_pretrained(tmp_path)(ids).logits, model(ids).logits)


def test_saving_into_its_own_folder_twice(tmp_path):
    model = small()
    model.save_pretrained(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    SemFocusModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
