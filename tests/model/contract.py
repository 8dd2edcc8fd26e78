"""The cases of the contract tests (test_common_*.py): every class × five masks, tiny models, a padded and labelled batch.

What they check is what Transformers' own common tests ask of an encoder that is built in.
"""

import pytest
import torch
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

CLASSES = [SemFocusModel, SemFocusForSequenceClassification, SemFocusForTokenClassification, SemFocusForMaskedLM]
HEADS = CLASSES[1:]
AUTO = {
    SemFocusModel: AutoModel,
    SemFocusForSequenceClassification: AutoModelForSequenceClassification,
    SemFocusForTokenClassification: AutoModelForTokenClassification,
    SemFocusForMaskedLM: AutoModelForMaskedLM,
}
MASKS = ["full", "banded:5", "banded:5;ends=shift", "block:5", "topk:3", "topk:3+sink:1"]
VOCABULARY, LABELS, LENGTHS = 13, 3, (9, 6, 1)

every_mask = pytest.mark.parametrize("spec", MASKS)
every_class = pytest.mark.parametrize("cls", CLASSES)
every_head = pytest.mark.parametrize("cls", HEADS)


def make(cls, spec="topk:3", *, seed=0, **fields):
    """A model of 2 layers and 2 heads in eval mode."""
    torch.manual_seed(seed)
    base = {
        "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "mask": spec,
        "num_attention_heads": 2, "num_labels": LABELS, "max_position_embeddings": 32,
    }  # fmt: skip
    return cls(SemFocusConfig(**base | fields)).eval()


def shuffled(model):
    """`model` with weights that no initialisation gives, the padding row of the embeddings among them."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(lengths=LENGTHS, *, seed=0, side="right"):
    """`input_ids` and `attention_mask` of texts of these lengths, padded with a token that is not the padding token."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(1, VOCABULARY, (len(lengths), width), generator=generator)
    position = torch.arange(width)
    length = torch.tensor(lengths)[:, None]
    valid = position < length if side == "right" else position >= width - length
    return {"input_ids": ids, "attention_mask": valid.long()}


def labelled(cls, inputs, *, seed=1):
    """The inputs with labels that fit the class; none for the encoder."""
    ids, valid = inputs["input_ids"], inputs["attention_mask"].bool()
    generator = torch.Generator().manual_seed(seed)
    if cls is SemFocusModel:
        return inputs
    if cls is SemFocusForSequenceClassification:
        labels = torch.randint(LABELS, ids.shape[:1], generator=generator)
    else:
        classes = VOCABULARY if cls is SemFocusForMaskedLM else LABELS
        labels = torch.randint(classes, ids.shape, generator=generator).masked_fill(~valid, -100)
    return {**inputs, "labels": labels}


def loss_of(model, inputs, **kwargs):
    """The loss of labelled inputs; for the encoder any smooth function of the valid tokens' states."""
    output = model(**inputs, **kwargs)
    if "loss" in output:
        return output.loss
    return output.last_hidden_state[inputs["attention_mask"].bool()].sin().square().mean()


def gradients(model, inputs, **kwargs):
    """The loss and the gradient of every parameter, None where there is none."""
    model.zero_grad()
    loss = loss_of(model, inputs, **kwargs)
    loss.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.detach(), {name: None if grad is None else grad.clone() for name, grad in grads.items()}


def same_tensors(one, other):
    """Whether two dictionaries of tensors are bit-equal."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
