"""Contract of every class under every mask: where weights go when a checkpoint is loaded, and under old names of arguments."""

import pytest
import torch

from hf_semfocus import SemFocusForMaskedLM, SemFocusModel

from .contract import HEADS, MASKS, batch, every_class, every_mask, make, same_tensors


def size(model):
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict(keep_vars=True).values())


@every_mask
@every_class
def test_weights_that_do_not_fit_stay_on_the_disk_and_change_nothing(cls, spec, tmp_path):
    """By device map, and by the memory that there is: whole layers go to the disk, and tied weights stay tied."""
    model, inputs = make(cls, spec), batch()
    model.save_pretrained(tmp_path / "model")
    expected = dict(model(**inputs))
    layers = ["encoder.layers.0", "encoder.layers.1"]
    layers = layers if model.base_model is model else [f"model.{name}" for name in layers]
    others = {name.rpartition(".")[0] for name in model.state_dict() if not name.startswith(tuple(layers))}
    by_hand = {**dict.fromkeys(others, "cpu"), layers[0]: "disk", layers[1]: "cpu"}
    maps = {
        "by-hand": {"device_map": by_hand},
        "memory": {"device_map": "auto", "max_memory": {"cpu": int(size(model) * 0.8)}},
        "enough": {"device_map": "auto"},
    }
    for name, arguments in maps.items():
        loaded = cls.from_pretrained(tmp_path / "model", offload_folder=tmp_path / name, **arguments)
        placed = getattr(loaded, "hf_device_map", {})
        away = {part for part, device in placed.items() if device == "disk"}
        assert bool(away) is (name != "enough"), placed
        assert all(part in layers or not part.startswith(tuple(layers)) for part in away)
        for _ in range(2):
            assert same_tensors(dict(loaded(**inputs)), expected), name
        if cls is SemFocusForMaskedLM and not away & {"decoder", "model.embeddings"}:
            assert loaded.decoder.weight is loaded.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("cls", "spec"),
    [(SemFocusModel, spec) for spec in [*MASKS, "topp:0.5", "lsh:2", "cluster:2", "random:3"]]
    + [(cls, "topk:3+sink:1") for cls in HEADS],
)
def test_shapes_can_be_had_without_numbers(cls, spec):
    """Forward and backward on the meta device, as tools do it that count operations and memory."""
    expected = make(cls, spec)(**batch((9, 9, 9)))[0].shape
    with torch.device("meta"):
        model = make(cls, spec).train()
        inputs = {"input_ids": torch.ones(3, 9, dtype=torch.long), "attention_mask": torch.ones(3, 9)}
    for implementation in ("semfocus", "eager"):
        model.set_attn_implementation(implementation)
        output = model(**inputs, output_attentions=True)
        assert output[0].shape == expected
        assert [weights.shape for weights in output.attentions] == [(3, 2, 9, 9)] * 2
        output = model(inputs["input_ids"])
        assert output[0].is_meta
        output[0].sum().backward()


@every_class
def test_the_default_device_of_the_process_is_no_obstacle(cls, tmp_path):
    model = make(cls, position_embedding_type="sinusoidal")
    model.save_pretrained(tmp_path)
    with torch.device("cpu"):
        loaded = cls.from_pretrained(tmp_path)
    assert same_tensors(dict(loaded.named_buffers()), dict(model.named_buffers()))
    assert same_tensors(dict(loaded(**batch())), dict(model(**batch())))
    with torch.device("meta"), pytest.raises(RuntimeError, match="meta device context"):
        cls.from_pretrained(tmp_path)
