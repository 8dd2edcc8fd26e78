"""What users do with models of Transformers, done with one that attends sparsely: it does what the model does otherwise."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch.export import Dim
from transformers import AutoModelForCausalLM, BertConfig, BertForSequenceClassification, BertModel

from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification, apply_attention, register_attention
from tests.integrations.any_models import SIZES, VOCABULARY, clip, llama, make, padded_batch

MASK = "topk:2+sink:1"
NAME = register_attention(MASK)
IDS, REAL = padded_batch()


def sparse_llama(mask=MASK):
    return apply_attention(make(llama, torch.float32), mask)


@torch.no_grad()
def logits_of(model):
    return model.eval()(input_ids=IDS, attention_mask=REAL).logits


def gradients_of(model, batch=slice(None)):
    model.zero_grad()
    ids, real = IDS[batch], REAL[batch]
    model(input_ids=ids, attention_mask=real, labels=ids, use_cache=False).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_copies_of_models_and_configurations_keep_it(again):
    model = sparse_llama()
    assert again(model.config)._attn_implementation == NAME
    assert AutoModelForCausalLM.from_config(again(model.config)).config._attn_implementation == NAME
    assert logits_of(again(model)).equal(logits_of(model))


def test_parts_have_implementations_of_their_own(tmp_path):
    model = make(clip, torch.float32)
    model.set_attn_implementation({"text_config": NAME})
    model.save_pretrained(tmp_path)
    other = {"attn_implementation": {"text_config": "eager", "vision_config": NAME}}
    for given, text, vision in (({}, NAME, "sdpa"), (other, "eager", NAME)):
        loaded = type(model).from_pretrained(tmp_path, **given).config
        assert loaded.text_config._attn_implementation == text
        assert loaded.vision_config._attn_implementation == vision


@pytest.mark.parametrize("options", [{"device_map": "auto"}, {"device_map": {"": "cpu"}}, {"dtype": "auto"}], ids=str)
def test_it_loads_from_pieces_onto_devices_and_in_its_own_dtype(options, tmp_path):
    model = sparse_llama()
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert logits_of(AutoModelForCausalLM.from_pretrained(tmp_path, **options)).equal(logits_of(model))


def test_vocabularies_and_heads_of_another_size(tmp_path):
    model = sparse_llama()
    before = logits_of(model)
    model.resize_token_embeddings(VOCABULARY + 3)
    model.save_pretrained(tmp_path / "wider")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "wider")
    torch.testing.assert_close(logits_of(loaded)[..., :VOCABULARY], before)
    apply_attention(BertForSequenceClassification(BertConfig(**SIZES)), MASK).save_pretrained(tmp_path / "head")
    loaded = BertForSequenceClassification.from_pretrained(
        tmp_path / "head", num_labels=7, ignore_mismatched_sizes=True
    )
    assert loaded(input_ids=IDS).logits.shape == (3, 7)
    assert loaded.config._attn_implementation == NAME


@pytest.mark.parametrize("mask", [MASK, "banded:3", "topp:0.5", "random:2;seed=1"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(mask, reentrant):
    model = sparse_llama(mask).double().train()
    plain = gradients_of(model)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    again = gradients_of(model)
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("mask", [MASK, "banded:3", "topp:0.5"])
@torch.no_grad()
def test_an_encoder_exports_with_a_free_batch_and_length(mask):
    model = apply_attention(BertModel(BertConfig(**SIZES)).eval(), mask)
    free = {0: Dim("B", min=1, max=64), 1: Dim("L", min=4, max=50)}
    inputs = {"input_ids": IDS, "attention_mask": REAL}
    program = torch.export.export(model, (), kwargs=inputs, dynamic_shapes=dict.fromkeys(inputs, free)).module()
    for rows, length in ((2, 13), (1, 5)):
        ids, real = padded_batch(length, (0, 1)[:rows], (0, 0)[:rows])
        made, expected = (
            call(input_ids=ids, attention_mask=real).last_hidden_state[real.bool()] for call in (program, model)
        )
        torch.testing.assert_close(made, expected)


@pytest.mark.filterwarnings("ignore")
def test_quantised_linear_layers(tmp_path):
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import AutoModelForSequenceClassification, TorchAoConfig

    torch.manual_seed(0)
    ours = SemFocusForSequenceClassification(SemFocusConfig(vocab_size=VOCABULARY, mask=MASK, num_labels=3))
    for model, auto in ((sparse_llama(), AutoModelForCausalLM), (ours, AutoModelForSequenceClassification)):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        quantised = auto.from_pretrained(folder, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))
        assert any(type(parameter).__name__ == "Int8Tensor" for parameter in quantised.parameters())
        assert 0 < (logits_of(quantised) - logits_of(model)).abs().mean() < 0.2 * logits_of(model).abs().mean()
        quantised.save_pretrained(folder / "again")
        assert logits_of(auto.from_pretrained(folder / "again")).equal(logits_of(quantised))


TWO = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.ecosystem.test_any_model import gradients_of, sparse_llama
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
model = DistributedDataParallel(sparse_llama().train())
torch.save(gradients_of(model, slice(rank, rank + 1)), f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_have_the_mean_of_their_gradients(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", TWO, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(timeout=200) for process in running] == [0, 0]
    model = sparse_llama().train()
    one, other = (gradients_of(model, slice(rank, rank + 1)) for rank in range(2))
    for rank in range(2):
        made = torch.load(tmp_path / f"{rank}.pt")
        assert {f"module.{name}" for name in one} == made.keys()
        for name, gradient in one.items():
            torch.testing.assert_close(made[f"module.{name}"], (gradient + other[name]) / 2)
