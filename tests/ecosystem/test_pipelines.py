"""Pipelines of every head under every mask: plain text in, real label names out, in a process that has the checkpoints alone."""

import json

import pytest
import torch

from hf_semfocus import (
    SemFocusConfig,
    SemFocusForMaskedLM,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
    SemFocusModel,
)
from hf_semfocus.data import build_tokenizer, task_info
from tests.model.contract import MASKS
from tests.model.isolated import run

TEXTS = ["0 1 PUSH_0 [Q] [Q] [Q] [Q]", "1 1 0 POP PUSH_1 POP POP PUSH_0 0 0 0", "POP"]
MASKED = ["0 1 [MASK] [Q]", "1 [MASK] 0 POP PUSH_1 POP POP PUSH_0 0 0 0", "[MASK]"]
PIPELINES = {
    "text-classification": SemFocusForSequenceClassification,
    "token-classification": SemFocusForTokenClassification,
    "fill-mask": SemFocusForMaskedLM,
    "feature-extraction": SemFocusModel,
}


def checkpoint(cls, spec, folder):
    """A model with large weights, so that its answers are far from one another, beside its tokenizer."""
    tokenizer, labels = build_tokenizer("stack_manipulation", "cls"), task_info("stack_manipulation").labels
    torch.manual_seed(0)
    config = SemFocusConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        mask=spec, pooling="cls", max_position_embeddings=40, id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )  # fmt: skip
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By mask and pipeline: the model, its tokenizer, and what the pipeline answered elsewhere, text by text and in a batch."""
    folder = tmp_path_factory.mktemp("pipelines")
    made = {
        (spec, kind): checkpoint(cls, spec, folder / kind / spec) for spec in MASKS for kind, cls in PIPELINES.items()
    }
    code = f"""
import json, warnings
from transformers import logging, pipeline
logging.set_verbosity_error()
answers = []
for spec, kind in {list(made)!r}:
    pipe = pipeline(kind, model={str(folder)!r} + f"/{{kind}}/{{spec}}", trust_remote_code=True)
    texts = {MASKED!r} if kind == "fill-mask" else {TEXTS!r}
    options = dict(top_k=None) if kind == "text-classification" else {{}}
    one = [pipe(text, **options) for text in texts]
    together = list(pipe(texts, batch_size=3, **options))
    answers.append([one, together])
print(json.dumps(answers, default=float))
"""
    answers = json.loads(run(code, folder / "machine").splitlines()[-1])
    return {key: (*pair, *answer) for (key, pair), answer in zip(made.items(), answers, strict=True)}


def logits_of(model, tokenizer, text):
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt"))[0][0]


every_spec = pytest.mark.parametrize("spec", MASKS)


@every_spec
def test_text_classification(models, spec):
    model, tokenizer, one, together = models[spec, "text-classification"]
    for text, alone, batched in zip(TEXTS, one, together, strict=True):
        probability = logits_of(model, tokenizer, text).softmax(-1)
        expected = {model.config.id2label[index]: p for index, p in enumerate(probability.tolist())}
        for answer in (alone, batched):
            assert {entry["label"]: entry["score"] for entry in answer} == pytest.approx(expected, abs=1e-5)
    assert len({alone[0]["label"] for alone in one}) > 1


@every_spec
def test_token_classification(models, spec):
    model, tokenizer, one, together = models[spec, "token-classification"]
    for text, alone, batched in zip(TEXTS, one, together, strict=True):
        score, label = logits_of(model, tokenizer, text)[1:].softmax(-1).max(-1)  # [CLS] is left out
        for answer in (alone, batched):
            assert [entry["word"] for entry in answer] == text.split()
            assert [entry["entity"] for entry in answer] == [model.config.id2label[index] for index in label.tolist()]
            assert [entry["score"] for entry in answer] == pytest.approx(score.tolist(), abs=1e-5)
            assert [text[entry["start"] : entry["end"]] for entry in answer] == text.split()


@every_spec
def test_fill_mask(models, spec):
    model, tokenizer, one, together = models[spec, "fill-mask"]
    for text, alone, batched in zip(MASKED, one, together, strict=True):
        place = tokenizer(text)["input_ids"].index(tokenizer.mask_token_id)
        score, token = logits_of(model, tokenizer, text)[place].softmax(-1).topk(5)
        for answer in (alone, batched):
            assert [entry["token"] for entry in answer] == token.tolist()
            assert [entry["token_str"] for entry in answer] == tokenizer.convert_ids_to_tokens(token)
            assert [entry["score"] for entry in answer] == pytest.approx(score.tolist(), abs=1e-5)


@every_spec
def test_feature_extraction(models, spec):
    model, tokenizer, one, _ = models[spec, "feature-extraction"]
    for text, alone in zip(TEXTS, one, strict=True):
        assert torch.allclose(torch.tensor(alone)[0], logits_of(model, tokenizer, text), atol=1e-5)
