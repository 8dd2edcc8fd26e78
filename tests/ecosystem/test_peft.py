"""LoRA on every linear layer of every class: adapters alone are trained, with and without saving memory, and saved."""

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from hf_semfocus import SemFocusForMaskedLM, SemFocusForTokenClassification, SemFocusModel, apply_attention
from tests.integrations.any_models import llama, padded_batch
from tests.integrations.any_models import make as make_any
from tests.model.contract import batch, every_class, gradients, labelled, make, same_tensors

TASKS = {SemFocusModel: "FEATURE_EXTRACTION", SemFocusForMaskedLM: None, SemFocusForTokenClassification: "TOKEN_CLS"}


@pytest.mark.parametrize("form", ["multihead", "bilinear"])
@every_class
def test_lora_on_every_linear_layer(cls, form, tmp_path):
    inputs = labelled(cls, batch())
    make(cls, "topk:3+sink:1", attention_form=form).save_pretrained(tmp_path / "base")
    base = cls.from_pretrained(tmp_path / "base")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    linear = {name for name, part in base.named_modules() if isinstance(part, torch.nn.Linear)}
    # PEFT leaves out the head of a sequence classifier by itself, that of a token classifier only where it is told to.
    other = {"exclude_modules": ["classifier"]} if cls is SemFocusForTokenClassification else {}
    kind = TASKS.get(cls, "SEQ_CLS")
    config = LoraConfig(task_type=kind, r=2, target_modules="all-linear", init_lora_weights=False, **other)
    torch.manual_seed(0)
    model = get_peft_model(base, config)
    adapted = {
        name.split("base_model.model.")[1].removesuffix(".lora_A")
        for name, _ in model.named_modules()
        if name.endswith(".lora_A")
    }
    assert adapted == {name for name in linear if name.split(".")[0] not in ("classifier", "decoder")}

    loss, plain = gradients(model.train(), inputs)
    trained = {name for name, grad in plain.items() if grad is not None}
    assert trained == {name for name in plain if "lora_" in name or "modules_to_save" in name}
    for reentrant in (True, False):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
        same_loss, again = gradients(model, inputs)
        assert torch.equal(loss, same_loss)
        assert same_tensors({name: plain[name] for name in trained}, {name: again[name] for name in trained})
        model.activation_checkpointing_disable()

    expected = model.eval()(**inputs)[0]
    assert not torch.allclose(expected, cls.from_pretrained(tmp_path / "base")(**inputs)[0], atol=1e-3)
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(cls.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert torch.equal(again(**inputs)[0], expected)
    merged = again.merge_and_unload()
    assert type(merged) is cls
    assert torch.allclose(merged(**inputs)[0], expected, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(cls.from_pretrained(tmp_path / "merged")(**inputs)[0], merged(**inputs)[0])
    assert same_tensors(cls.from_pretrained(tmp_path / "base").state_dict(), before)


def test_an_adapter_on_a_sparse_model_of_transformers(tmp_path):
    """Trained with saved activations, and loaded on the saved base: sparse again, as docs/guides/any-model.md says."""
    apply_attention(make_any(llama, torch.float32), "topk:3+sink:1").save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "k_proj"], init_lora_weights=False)
    model = get_peft_model(base, config).train()
    ids, real = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": real, "labels": ids.masked_fill(real == 0, -100)}
    _, plain = gradients(model, inputs)
    assert all((grad is not None and bool(grad.any())) == ("lora_" in name) for name, grad in plain.items())
    model.gradient_checkpointing_enable({"use_reentrant": False})
    _, again = gradients(model, inputs)
    assert all(grad is None or torch.equal(grad, again[name]) for name, grad in plain.items())
    model.eval().save_pretrained(tmp_path / "adapter")
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert loaded.config._attn_implementation == "semfocus:topk:3+sink:1"
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    loaded.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.config._attn_implementation == "semfocus:topk:3+sink:1"
    torch.testing.assert_close(merged(**inputs).logits, model(**inputs).logits, atol=1e-4, rtol=1e-4)
