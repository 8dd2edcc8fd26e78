"""Sparse attention in Transformers' own models, against an attention that applies the same mask by hand."""

import pytest
import torch

from hf_semfocus import register_attention
from tests.integrations.any_models import (
    BOTH,
    CROSS_MASKS,
    DECODERS,
    ENCODERS,
    MASKS,
    by_hand,
    make,
    padded_batch,
    text_positions,
)

MODELS = {build.__name__: build for build in [*ENCODERS, *DECODERS, *BOTH]}
PAIRS = [(name, mask) for name, build in MODELS.items() for mask in (CROSS_MASKS if build in BOTH else MASKS)]
# Their own eager attention rounds the softmax to fp32, where a lowest fp64 number is −inf and padding becomes NaN.
ROUNDS = {"modernbert", "llama", "qwen2", "mistral", "gpt_neox", "gemma2"}


def inputs_for(build):
    """Inputs with padding on both sides, and a mask of the output rows that count."""
    ids, real = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": real}
    if build in BOTH:
        later, counts = padded_batch(6, (0, 1, 0), (0, 0, 1), seed=2)
        return inputs | {"decoder_input_ids": later, "decoder_attention_mask": counts}, counts.bool()
    if build in DECODERS:
        inputs |= {"position_ids": text_positions(real), "use_cache": False}
    return inputs, real.bool()


def logits_and_gradients(model, name, inputs, counts):
    model.set_attn_implementation(name)
    model.zero_grad()
    logits = model(**inputs).logits[counts]
    logits.square().mean().backward()
    return logits.detach(), {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


def assert_equal(ours, theirs, tolerance):
    (logits, gradients), (expected, expected_gradients) = ours, theirs
    torch.testing.assert_close(logits, expected, atol=tolerance, rtol=tolerance)
    assert gradients.keys() == expected_gradients.keys()
    assert gradients
    for key, gradient in gradients.items():
        scale = max(1.0, expected_gradients[key].abs().max().item())
        torch.testing.assert_close(gradient, expected_gradients[key], atol=tolerance * scale, rtol=tolerance, msg=key)


@pytest.mark.parametrize(("kind", "mask"), PAIRS)
def test_logits_and_gradients_are_those_of_the_mask_applied_by_hand(kind, mask):
    model = make(MODELS[kind])
    inputs, counts = inputs_for(MODELS[kind])
    ours = logits_and_gradients(model, register_attention(mask), inputs, counts)
    assert_equal(ours, logits_and_gradients(model, by_hand(mask), inputs, counts), 1e-10)
    dense, _ = logits_and_gradients(model, by_hand("full"), inputs, counts)
    assert (ours[0] - dense).abs().max() > 1e-4, "the mask changes nothing: the test would not see it"


@pytest.mark.parametrize("kind", MODELS)
def test_with_as_many_keys_as_there_are_it_is_the_model_s_own_attention(kind):
    inputs, counts = inputs_for(MODELS[kind])
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 5e-5)):
        own = "eager"
        if dtype == torch.float64 and kind in ROUNDS:
            own = by_hand("full") if kind == "gemma2" else "sdpa"
        model = make(MODELS[kind], dtype)
        expected = logits_and_gradients(model, own, inputs, counts)
        for mask in ("topk:9", "full"):
            assert_equal(logits_and_gradients(model, register_attention(mask), inputs, counts), expected, tolerance)
