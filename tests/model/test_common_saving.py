"""Contract of every class under every mask: saving and loading in all ways, embeddings, tied weights, initialisation."""

import copy
import json
import pickle

import pytest
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModel

from hf_semfocus import SemFocusConfig, SemFocusForMaskedLM, SemFocusModel

from .contract import (
    AUTO,
    VOCABULARY,
    batch,
    every_class,
    every_head,
    every_mask,
    gradients,
    labelled,
    make,
    same_tensors,
    shuffled,
)


@every_mask
@every_class
def test_every_way_of_loading_gives_the_same_model(cls, spec, tmp_path):
    model, inputs = shuffled(make(cls, spec)), labelled(cls, batch())
    expected = dict(model(**inputs))
    model.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    model.save_pretrained(tmp_path / "variant", variant="second")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pth")]
    config = AutoConfig.from_pretrained(tmp_path / "plain")
    with torch.device("meta"):
        empty = cls(config).eval()
    empty.load_state_dict(model.state_dict(), assign=True)
    empty.tie_weights()
    for loaded in (
        AUTO[cls].from_pretrained(tmp_path / "plain"),
        cls.from_pretrained(tmp_path / "shards"),
        cls.from_pretrained(tmp_path / "variant", variant="second"),
        cls.from_pretrained(tmp_path / "plain", config=config, device_map={"": "cpu"}),
        cls.from_pretrained(None, config=copy.deepcopy(config), state_dict=model.state_dict()),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        empty,
    ):
        assert not loaded.training
        assert same_tensors(loaded.state_dict(), model.state_dict())
        assert same_tensors(dict(loaded(**inputs)), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.float64])
@every_class
def test_dtype_is_that_of_the_call_or_of_the_checkpoint(cls, dtype, tmp_path):
    exact = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    model = shuffled(make(cls, position_embedding_type="sinusoidal"))
    model.save_pretrained(tmp_path / "float32")
    loaded = cls.from_pretrained(tmp_path / "float32", dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {exact}
    assert loaded.dtype == exact
    assert loaded(**batch())[0].dtype == exact
    assert same_tensors(loaded.state_dict(), copy.deepcopy(model).to(exact).state_dict())
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == str(exact).removeprefix("torch.")
    again = cls.from_pretrained(tmp_path / "again", dtype="auto")
    assert again.dtype == exact
    assert torch.equal(again(**batch())[0], loaded(**batch())[0])


@every_mask
@every_class
def test_the_configuration_survives_the_model(cls, spec, tmp_path):
    model = make(cls, spec, layer_masks=[spec, "full"], problem_type="multi_label_classification")
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path).config
    for read in (
        loaded,
        SemFocusConfig.from_pretrained(tmp_path),
        copy.deepcopy(loaded),
        pickle.loads(pickle.dumps(loaded)),
    ):
        where = {"_name_or_path": model.config._name_or_path}
        assert read.to_dict() | where == model.config.to_dict()
    assert SemFocusConfig.from_json_file(tmp_path / "config.json").to_diff_dict() == model.config.to_diff_dict()
    assert loaded.architectures == [cls.__name__]
    for field, wrong in (("mask", 3), ("layer_masks", "full"), ("tie_word_embeddings", "yes"), ("hidden_size", 16.0)):
        with pytest.raises(ValueError, match=field if field != "mask" else "mask must be str"):
            setattr(loaded, field, wrong)


@every_head
def test_missing_unexpected_and_mismatched_weights_are_told_and_drawn_as_at_the_start(cls, tmp_path):
    encoder = shuffled(make(SemFocusModel))
    encoder.save_pretrained(tmp_path / "encoder")
    model, info = cls.from_pretrained(tmp_path / "encoder", num_labels=5, output_loading_info=True)
    own = {name for name in model.state_dict() if not name.startswith("model.")} - {"decoder.weight"}
    assert info["missing_keys"] == own | ({"decoder.weight"} & set(info["missing_keys"]))
    assert not info["unexpected_keys"]
    assert same_tensors(model.model.state_dict(), encoder.state_dict())
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    head = shuffled(make(cls))
    head.save_pretrained(tmp_path / "head")
    back, info = AutoModel.from_pretrained(tmp_path / "head", output_loading_info=True)
    assert type(back) is SemFocusModel
    assert not info["missing_keys"]
    assert same_tensors(back.state_dict(), head.model.state_dict())
    if cls is not SemFocusForMaskedLM:
        with pytest.raises(RuntimeError, match="size"):
            cls.from_pretrained(tmp_path / "head", num_labels=7)
        wider = cls.from_pretrained(tmp_path / "head", num_labels=7, ignore_mismatched_sizes=True)
        assert wider(**batch())[0].shape[-1] == 7
        assert same_tensors(wider.model.state_dict(), head.model.state_dict())
        assert 0 < wider.classifier.weight.abs().max() <= 0.25


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@every_class
def test_a_checkpoint_without_weights_gets_the_weights_of_a_new_model(cls, positions):
    """Every parameter and buffer is known to `_init_weights`: none is left as the memory was."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_labels", "vocab_size"), 64)
    fields = {"position_embedding_type": positions, "attention_gain": 3.0, "norm_position": "pre", **sizes}
    new = make(cls, **fields)
    loaded = cls.from_pretrained(None, config=copy.deepcopy(new.config), state_dict={})
    for name, one in new.state_dict(keep_vars=True).items():
        other = loaded.state_dict()[name]
        if one.std() == 0:  # the norms
            assert torch.equal(one, other), name
        else:
            assert 0.7 < other.std() / one.std() < 1.4, name
            assert abs(other.mean()) < 4 * one.std() / one.numel() ** 0.5, name
    assert not loaded.get_input_embeddings().weight[0].any()
    for one, other in zip(new.buffers(), loaded.buffers(), strict=True):
        assert torch.equal(one, other)


@every_mask
@every_class
def test_a_model_made_without_memory_is_initialised_whole(cls, spec):
    """On the meta device, then in memory that holds anything; nothing of a model is kept outside parameters and buffers."""
    for fields in ({}, {"position_embedding_type": "sinusoidal"}, {"attention_form": "bilinear"}):
        expected = make(cls, spec, **fields)
        with torch.device("meta"):
            model = cls(copy.deepcopy(expected.config))
        tensors = [*model.parameters(), *model.buffers()]
        assert all(tensor.is_meta for tensor in tensors)
        held = {id(tensor) for tensor in tensors}
        loose = [value for part in model.modules() for value in vars(part).values() if torch.is_tensor(value)]
        assert all(id(value) in held for value in loose)
        model.to_empty(device="cpu")
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 7)
        torch.manual_seed(0)
        model.initialize_weights()
        model.tie_weights()
        assert same_tensors(dict(model.named_buffers()), dict(expected.named_buffers()))
        for name, parameter in model.named_parameters():
            assert parameter.isfinite().all(), name
            assert torch.allclose(parameter.std(), expected.get_parameter(name).std(), rtol=0.5, atol=0.1), name
        assert model(**batch())[0].isfinite().all()


@pytest.mark.parametrize("tied", [True, False])
@every_class
def test_embeddings_can_be_got_set_and_resized(cls, tied, tmp_path):
    model = shuffled(make(cls, tie_word_embeddings=tied, embedding_std=0.5))
    inputs = batch()
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    before, old = model(**inputs)[0], model.state_dict()
    model.resize_token_embeddings(VOCABULARY + 4)
    assert model.config.vocab_size == VOCABULARY + 4 == model.get_input_embeddings().num_embeddings
    assert torch.allclose(model(**inputs)[0][..., : before.shape[-1]], before, atol=1e-6)
    assert model(input_ids=torch.tensor([[VOCABULARY + 3]]))[0].isfinite().all()
    if cls is SemFocusForMaskedLM:
        assert model(**inputs).logits.shape[-1] == VOCABULARY + 4
        assert model.get_output_embeddings() is model.decoder
        assert (model.decoder.weight is model.get_input_embeddings().weight) is tied
    else:
        assert model.get_output_embeddings() is None
    model.save_pretrained(tmp_path)
    assert torch.equal(cls.from_pretrained(tmp_path)(**inputs)[0], model(**inputs)[0])
    model.resize_token_embeddings(VOCABULARY)
    assert same_tensors(model.state_dict(), old)
    model.resize_token_embeddings(320, mean_resizing=False)
    assert 0.4 < model.get_input_embeddings().weight[VOCABULARY:].std() < 0.6
    other = nn.Embedding(320, 16)
    model.set_input_embeddings(other)
    assert model.get_input_embeddings() is other


def test_a_tied_decoder_is_the_embedding_table_and_is_saved_once(tmp_path):
    model = shuffled(make(SemFocusForMaskedLM))
    inputs = labelled(SemFocusForMaskedLM, batch())
    assert model.decoder.weight is model.get_input_embeddings().weight
    assert "decoder.weight" not in dict(model.named_parameters())
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert not {"decoder.weight", "model.embeddings.tokens.weight"} <= set(file.keys())
    for loaded in (
        SemFocusForMaskedLM.from_pretrained(tmp_path),
        SemFocusForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16).float(),
        copy.deepcopy(model),
    ):
        assert loaded.decoder.weight is loaded.get_input_embeddings().weight
        loaded.decoder.weight.data.mul_(2)
        assert torch.equal(loaded.decoder.weight, loaded.get_input_embeddings().weight)
    # Its gradient is the sum of what it gets as a table and as a decoder.
    untied = shuffled(make(SemFocusForMaskedLM, tie_word_embeddings=False))
    untied.load_state_dict(model.state_dict())
    untied.head.norm.weight.data.mul_(16**-0.5)  # what only a tied decoder divides by
    untied.head.norm.bias.data.mul_(16**-0.5)
    tied_loss, tied = gradients(model, inputs)
    loss, apart = gradients(untied, inputs)
    assert torch.allclose(loss, tied_loss)
    name = "model.embeddings.tokens.weight"
    assert torch.allclose(tied[name], apart[name] + apart["decoder.weight"], atol=1e-6)


def test_an_untied_decoder_is_saved_and_stays_untied(tmp_path):
    model = shuffled(make(SemFocusForMaskedLM, tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    loaded = SemFocusForMaskedLM.from_pretrained(tmp_path)
    assert loaded.decoder.weight is not loaded.get_input_embeddings().weight
    assert same_tensors(loaded.state_dict(), model.state_dict())
    assert not torch.equal(loaded.decoder.weight, loaded.get_input_embeddings().weight)


def test_the_masked_lm_starts_near_uniform_predictions():
    """The loss of a new model is about the logarithm of the vocabulary's size, whether or not the decoder is tied."""
    ids = torch.randint(1, 200, (8, 30), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(1, 200, (8, 30), generator=torch.Generator().manual_seed(1))
    for fields in ({}, {"tie_word_embeddings": False}, {"embedding_std": 0.02}):
        model = make(SemFocusForMaskedLM, vocab_size=200, hidden_size=64, **fields)
        assert abs(model(ids, labels=labels).loss.item() - torch.tensor(200.0).log().item()) < 1
