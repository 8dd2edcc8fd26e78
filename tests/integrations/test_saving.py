"""A sparse attention that was chosen stays chosen: saved, loaded, saved again; and it is never lost in silence."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig

from hf_semfocus import apply_attention, register_attention
from tests.integrations.any_models import SIZES, bert, clip, llama, make, padded_batch
from tests.model.isolated import run

NAME = "semfocus:topk:3+sink:1"


def saved(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8")).get("attn_implementation")


@pytest.fixture
def model():
    return apply_attention(make(bert, torch.float32), "topk:3+sink:1")


def logits_of(model):
    ids, real = padded_batch()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=real).logits


def test_a_fresh_process_loads_it_sparse_or_not_at_all(model, tmp_path):
    model.save_pretrained(tmp_path / "first")
    assert saved(tmp_path / "first") == NAME
    torch.save((padded_batch(), logits_of(model)), tmp_path / "expected.pt")
    code = f"""
import torch
from transformers import AutoModelForMaskedLM
folder = {str(tmp_path)!r}
(ids, real), expected = torch.load(folder + "/expected.pt")
torch.set_num_threads(1)
try:
    AutoModelForMaskedLM.from_pretrained(folder + "/first")
except ValueError as error:
    print("refused", {NAME!r} in str(error))
dense = AutoModelForMaskedLM.from_pretrained(folder + "/first", attn_implementation="sdpa")
print("dense", (dense(input_ids=ids, attention_mask=real).logits - expected).abs().max() > 1e-3)
from hf_semfocus import register_attention
register_attention("topk:3+sink:1")
model = AutoModelForMaskedLM.from_pretrained(folder + "/first")
model.save_pretrained(folder + "/second")  # without a forward pass in between
again = AutoModelForMaskedLM.from_pretrained(folder + "/second").eval()
again.save_pretrained(folder + "/third")
print("equal", again(input_ids=ids, attention_mask=real).logits.equal(expected))
"""
    lines = run(code, tmp_path / "cache", package=True).split("\n")
    assert lines[:3] == ["refused True", "dense tensor(True)", "equal True"]
    assert saved(tmp_path / "second") == saved(tmp_path / "third") == NAME


def test_importing_the_package_is_enough(model, tmp_path):
    model.save_pretrained(tmp_path / "bert")
    part = make(clip, torch.float32)
    apply_attention(part.vision_model, "topk:3")
    part.save_pretrained(tmp_path / "clip")
    torch.save((padded_batch(), logits_of(model)), tmp_path / "expected.pt")
    code = f"""
import json, torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
import hf_semfocus
folder = {str(tmp_path)!r}
(ids, real), expected = torch.load(folder + "/expected.pt")
torch.set_num_threads(1)
AutoConfig.from_pretrained(folder + "/bert").save_pretrained(folder + "/config")
print(json.load(open(folder + "/config/config.json"))["attn_implementation"])
model = AutoModelForMaskedLM.from_pretrained(folder + "/bert").eval()
print(model(input_ids=ids, attention_mask=real).logits.equal(expected))
print(AutoModel.from_pretrained(folder + "/clip").config.vision_config._attn_implementation)
model.set_attn_implementation("semfocus:banded:3")
for name in ("semfocus:tokp:3", "semfocus:topk:0", "topk:3"):
    try:
        AutoModelForMaskedLM.from_pretrained(folder + "/bert", attn_implementation=name)
    except ValueError as error:
        print(error)
"""
    lines = run(code, tmp_path / "cache", package=True).strip().split("\n")
    assert lines[:3] == [NAME, "True", "semfocus:topk:3"]
    assert "unknown mask strategy 'tokp'" in lines[3]
    assert "k must be" in lines[4] or "topk:0" in lines[4]
    assert "not supported" in lines[5]


def test_every_way_of_choosing_is_saved(tmp_path):
    name = register_attention("topk:3+sink:1")
    make(bert, torch.float32).save_pretrained(tmp_path / "dense")
    assert saved(tmp_path / "dense") is None
    ways = {
        "loaded": AutoModelForMaskedLM.from_pretrained(tmp_path / "dense", attn_implementation=name),
        "made": AutoModel.from_config(BertConfig(**SIZES), attn_implementation=name),
        "configured": AutoModel.from_config(BertConfig(**SIZES, attn_implementation=name)),
    }
    ways["set"] = make(bert, torch.float32)
    ways["set"].set_attn_implementation(name)
    for way, model in ways.items():
        model.save_pretrained(tmp_path / way)
        assert saved(tmp_path / way) == name, way
        assert AutoModel.from_pretrained(tmp_path / way).config._attn_implementation == name


def test_what_is_saved_is_what_is_used(model, tmp_path):
    logits_of(model)
    model.set_attn_implementation("sdpa")
    logits_of(model)
    model.save_pretrained(tmp_path / "dense")
    assert saved(tmp_path / "dense") is None
    apply_attention(model, "banded:3").save_pretrained(tmp_path / "banded")
    assert saved(tmp_path / "banded") == "semfocus:banded:3"


def test_the_argument_overrides_the_file(model, tmp_path):
    model.save_pretrained(tmp_path / "sparse")
    eager = AutoModelForMaskedLM.from_pretrained(tmp_path / "sparse", attn_implementation="eager")
    assert eager.config._attn_implementation == "eager"
    eager.save_pretrained(tmp_path / "eager")
    assert saved(tmp_path / "eager") is None
    assert AutoModel.from_pretrained(tmp_path / "eager").config._attn_implementation == "sdpa"


def test_configurations_alone_keep_it(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model")
    config.num_labels = 3
    config.save_pretrained(tmp_path / "config")
    assert saved(tmp_path / "config") == NAME
    assert BertConfig.from_dict(config.to_dict())._attn_implementation == NAME
    assert BertConfig(**SIZES).to_dict().keys().isdisjoint({"attn_implementation"})


def test_a_folder_for_generation_says_it_once(tmp_path):
    model = apply_attention(make(llama, torch.float32), "topk:3+sink:1")
    model.save_pretrained(tmp_path)
    assert "semfocus" not in (tmp_path / "generation_config.json").read_text(encoding="utf-8")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert logits_of(loaded).equal(logits_of(model))


def test_models_of_several_parts(tmp_path):
    probe = {"input_ids": torch.ones(1, 4, dtype=torch.long), "pixel_values": torch.zeros(1, 3, 8, 8)}
    whole = apply_attention(make(clip, torch.float32), "topk:2", probe=probe)
    whole.save_pretrained(tmp_path / "whole")
    assert saved(tmp_path / "whole") == "semfocus:topk:2"
    part = make(clip, torch.float32)
    apply_attention(part.vision_model, "topk:3")
    assert part.config.text_config._attn_implementation == "sdpa"
    part.save_pretrained(tmp_path / "part")
    assert saved(tmp_path / "part") == {"vision_config": "semfocus:topk:3"}
    for folder, model in (("whole", whole), ("part", part)):
        AutoModel.from_pretrained(tmp_path / folder).save_pretrained(tmp_path / f"{folder}-again")
        loaded = AutoModel.from_pretrained(tmp_path / f"{folder}-again")
        for key in ("text_config", "vision_config"):
            mine, theirs = getattr(loaded.config, key), getattr(model.config, key)
            assert mine._attn_implementation == theirs._attn_implementation
        with torch.no_grad():
            pair = [m(**probe).logits_per_image for m in (loaded, model)]
        # Weights lie elsewhere in memory; dense CLIP, too, is equal but for the last bit.
        torch.testing.assert_close(*pair)
