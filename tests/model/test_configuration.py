"""SemFocusConfig: defaults, round trips, errors at construction and at assignment."""

import dataclasses

import pytest
from transformers import AutoConfig

from hf_semfocus import SemFocusConfig, parse_mask

NON_DEFAULT = {
    "vocab_size": 50,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_act": "mish",
    "mask": "banded:5+global:1",
    "layer_masks": ["full", "random:3;seed=2"],
    "attention_form": "bilinear",
    "attention_scale": 0.25,
    "normalizer": "entmax15",
    "qk_norm": True,
    "qk_norm_scale": 2.5,
    "attention_bias": False,
    "mlp_bias": True,
    "norm_position": "pre",
    "position_embedding_type": "sinusoidal",
    "max_position_embeddings": 77,
    "embedding_std": 0.5,
    "position_std": 0.1,
    "attention_gain": 2.0,
    "target_entropy": 0.4,
    "weight_gain": 0.7,
    "layer_norm_eps": 1e-6,
    "first_norm_eps": 0.0,
    "final_norm": False,
    "norm_elementwise_affine": False,
    "embedding_bound": 0.1,
    "embedding_scale": 8.0,
    "classifier_bound": 0.1,
    "mlp_dropout": 0.25,
    "num_global_tokens": 2,
    "attend_padding": True,
    "pad_to_length": 11,
    "pad_to_multiple_of": 9,
    "pooling": "last",
    "hidden_dropout": 0.1,
    "attention_dropout": 0.2,
    "classifier_dropout": 0.3,
    "pad_token_id": 4,
    "tie_word_embeddings": False,
    "output_attentions": True,
    "num_labels": 7,
    "problem_type": "single_label_classification",
}


def test_every_field_has_a_non_default_value_in_this_file():
    inherited = {field.name for field in dataclasses.fields(SemFocusConfig.__base__)}
    own = {field.name for field in dataclasses.fields(SemFocusConfig)} - inherited
    assert own - set(NON_DEFAULT) == {"mask_sources"}
    defaults = SemFocusConfig()
    assert defaults.model_type == "semfocus"
    assert all(getattr(defaults, name) != value for name, value in NON_DEFAULT.items())


@pytest.mark.parametrize("name", NON_DEFAULT)
def test_every_field_survives_saving_and_loading(name, tmp_path):
    base = {"num_hidden_layers": 2, "hidden_size": 12, "attend_padding": name.startswith("pad_to")}
    SemFocusConfig(**base | {name: NON_DEFAULT[name]}).save_pretrained(tmp_path)
    for loaded in (SemFocusConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert getattr(loaded, name) == NON_DEFAULT[name]


def test_all_fields_together_survive_saving_and_loading(tmp_path):
    config = SemFocusConfig(**NON_DEFAULT)
    config.save_pretrained(tmp_path)
    loaded = SemFocusConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in NON_DEFAULT} == NON_DEFAULT
    assert SemFocusConfig(**config.to_dict()).to_dict() == config.to_dict()


def test_masks_are_kept_in_canonical_form():
    assert SemFocusConfig(mask=" random : 5 ").mask == "random:5;seed=0"
    assert SemFocusConfig(num_hidden_layers=1, layer_masks=["topk;k=3"]).layer_masks == ["topk:3"]
    config = SemFocusConfig()
    config.mask = "banded: 5"
    assert config.mask == "banded:5"
    assert str(SemFocusConfig(num_hidden_layers=2, layer_masks=["full", "topk:3"]).mask_of_layer(1)) == "topk:3"


IMPOSSIBLE = [
    ({"mask": "topk:0"}, "an integer >= 1; got 0"),
    ({"mask": ""}, "empty part"),
    ({"layer_masks": ["full", "topk:0", "full", "full", "full"]}, "got 0"),
    ({"layer_masks": ["full"]}, "num_hidden_layers=5, got 1"),
    ({"num_attention_heads": 3}, "num_attention_heads=3 does not divide hidden_size=64"),
    ({"num_attention_heads": 0}, "num_attention_heads must be a number from 1 to 2147483647, got 0"),
    ({"hidden_act": "reluu"}, "did you mean 'relu'"),
    ({"hidden_size": 0}, "hidden_size must be a number from 1"),
    ({"hidden_dropout": 1.5}, "hidden_dropout must be a number from 0 to 1, got 1.5"),
    ({"embedding_std": -1.0}, "embedding_std"),
    ({"embedding_std": float("nan")}, "embedding_std"),
    ({"attention_scale": 0.0}, "attention_scale"),
    ({"qk_norm_scale": 0}, "qk_norm_scale must be a number above 0"),
    ({"pad_token_id": 32}, "pad_token_id=32 must be below vocab_size=32"),
    ({"attention_form": "bilinear", "attention_bias": True}, "bilinear"),
]


@pytest.mark.parametrize(("fields", "words"), IMPOSSIBLE, ids=[str(fields) for fields, _ in IMPOSSIBLE])
def test_impossible_values_raise_plain_value_errors_at_construction(fields, words):
    with pytest.raises(ValueError) as error:
        SemFocusConfig(**fields)
    assert type(error.value) is ValueError
    assert words in str(error.value)


WRONG = [
    ({"hidden_size": "64"}, "hidden_size must be int, got '64'"),
    ({"hidden_size": 64.0}, "hidden_size must be int, got 64.0"),
    ({"hidden_size": [1] * 1000}, "hidden_size must be int"),
    ({"embedding_std": 10**400}, "embedding_std must be a number from 0 to 1e+30"),
    ({"attention_scale": 10**400}, "attention_scale must be a number above 0"),
    ({"attention_scale": "big"}, "attention_scale must be float | int | None, got 'big'"),
    ({"mask": 5}, "mask must be str, got 5"),
    ({"mask": f"topk:{2**63}"}, "needs k, an integer >= 1; got 9223372036854775808"),
    ({"mask": "random:3;seed=1" + "0" * 400}, "needs seed"),
    ({"layer_masks": "full"}, "layer_masks must be list[str] | None, got 'full'"),
    ({"layer_masks": ["full", 3]}, "layer_masks must be list[str] | None"),
    ({"attention_form": "dense"}, "attention_form must be Literal['multihead', 'bilinear'], got 'dense'"),
    ({"attention_gain": "auto"}, "got 'auto'; hf_semfocus.choose_attention_gain(config,"),
    ({"target_entropy": 1.5}, "target_entropy must be a number from 0 to 1, got 1.5"),
    ({"normalizer": "entmax"}, "['softmax', 'entmax15', 'sparsemax'], got 'entmax'"),
    ({"qk_norm": 1}, "qk_norm must be bool, got 1"),
    ({"qk_norm_scale": None}, "qk_norm_scale must be float | int, got None"),
    ({"pooling": "max"}, "pooling must be Literal['mean', 'cls', 'last'], got 'max'"),
    ({"hidden_dropout": "0.1"}, "hidden_dropout must be float | int, got '0.1'"),
    ({"pad_token_id": "0"}, "pad_token_id must be int | None"),
    # Fields that Transformers declares.
    ({"chunk_size_feed_forward": -1}, "chunk_size_feed_forward must be a number from 0"),
    ({"num_labels": 0}, "num_labels must be an integer from 1 to 16777216, got 0"),
    ({"problem_type": "x"}, "'multi_label_classification']"),
    ({"output_hidden_states": 3}, "output_hidden_states must be bool | None, got 3"),
    ({"id2label": 5}, "id2label must be dict[int, str] | dict[str, str] | None, got 5"),
    ({"id2label": {}}, "id2label must be names of the labels 0, 1, … without a gap, got {}"),
    ({"id2label": {1: "a", 2: "b"}}, "id2label must be names of the labels"),
    ({"dtype": "x"}, "dtype must be a floating-point torch dtype such as 'float32', got 'x'"),
    ({"dtype": "int8"}, "got 'int8'"),
    ({"dtype": 5}, "dtype must be str | torch.dtype | None, got 5"),
]


@pytest.mark.parametrize(("fields", "words"), WRONG, ids=range(len(WRONG)))
def test_wrong_types_and_values_raise_one_short_line(fields, words):
    config = SemFocusConfig()
    before = config.to_dict()
    for attempt in (lambda: SemFocusConfig(**fields), lambda: [setattr(config, *item) for item in fields.items()]):
        with pytest.raises(ValueError) as error:
            attempt()
        assert type(error.value) is ValueError
        assert words in str(error.value)
        assert len(str(error.value).splitlines()) == 1
    assert config.to_dict() == before


def test_a_wrong_type_in_a_saved_configuration_is_named(tmp_path):
    SemFocusConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 64', '"hidden_size": "64"'))
    with pytest.raises(ValueError, match="hidden_size must be int, got '64'"):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("masks", "mask"),
        ("n_heads", "num_attention_heads"),
        ("num_layers", "num_hidden_layers"),
        ("hidden_dropout_prob", "hidden_dropout"),
        ("layer_mask", "layer_masks"),
        ("bos_token_id", None),
        ("tokenizer_class", None),
        ("my_note", None),
    ],
)
def test_a_field_that_is_nearly_ours_is_kept_and_warned_of(name, meant, monkeypatch):
    said = []
    monkeypatch.setattr("hf_semfocus.model.configuration_semfocus.logger.warning", said.append)
    assert getattr(SemFocusConfig(**{name: 3}), name) == 3
    assert len(said) == (meant is not None)
    assert all(f"no field {name!r}" in line and f"did you mean {meant!r}?" in line for line in said)


def test_loading_and_copying_warn_of_nothing(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("hf_semfocus.model.configuration_semfocus.logger.warning", said.append)
    config = SemFocusConfig(**NON_DEFAULT)
    config.save_pretrained(tmp_path)
    SemFocusConfig(**AutoConfig.from_pretrained(tmp_path).to_dict())
    assert said == []


def test_settings_by_layer_other_than_masks_are_refused():
    with pytest.raises(ValueError, match=r"per_layer_config is not supported.*layer_masks"):
        SemFocusConfig(per_layer_config={0: {"mask": "full"}})


def test_fields_that_stopped_fitting_are_found_by_models_and_at_saving(tmp_path):
    from hf_semfocus import SemFocusModel

    config = SemFocusConfig()
    config.num_attention_heads = 3
    with pytest.raises(ValueError, match="does not divide"):
        SemFocusModel(config)
    with pytest.raises(ValueError, match="does not divide"):
        config.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_odd_head_counts_are_fine_in_the_bilinear_form():
    assert SemFocusConfig(attention_form="bilinear", num_attention_heads=3).num_attention_heads == 3


def test_unknown_strategy_of_a_checkpoint_names_what_to_import():
    with pytest.raises(ValueError, match=r"'mine'.*registered by the module 'my_lab\.masks'.*`import my_lab\.masks`"):
        SemFocusConfig(mask_sources={"mine": "my_lab.masks"}, mask="mine:3")
    with pytest.raises(ValueError, match=r"if the checkpoint holds custom_masks\.py.*has not imported hf_semfocus"):
        SemFocusConfig(mask_sources={"mine": "my_lab.masks"}, mask="mine:3")
    with pytest.raises(ValueError, match=r"main script or notebook.*run the code.*before loading it$"):
        SemFocusConfig(mask_sources={"mine": "__main__"}, mask="mine:3")
    with pytest.raises(ValueError) as error:
        SemFocusConfig(mask_sources={"mine": "my_lab.masks"}, mask="other:3")
    assert "my_lab" not in str(error.value)
    with pytest.raises(ValueError) as error:  # it is there, and its value is wrong
        SemFocusConfig(mask_sources={"topk": "my_lab.masks"}, mask="topk:0")
    assert "my_lab" not in str(error.value)


def test_a_mask_may_be_given_as_a_strategy():
    config = SemFocusConfig(mask=parse_mask("topk:5+sink:1"))
    assert config.mask == "topk:5+sink:1"
    assert config.to_dict() == SemFocusConfig(mask="topk:5+sink:1").to_dict()
