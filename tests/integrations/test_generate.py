"""Generation with sparse attention: step by step against a growing cache, equal to whole texts with the mask by hand."""

import pytest
import torch

from hf_semfocus import register_attention
from tests.integrations.any_models import (
    CROSS_MASKS,
    DECODERS,
    LEFT,
    MASKS,
    bart,
    by_hand,
    make,
    mistral,
    padded_batch,
    t5,
    text_positions,
)

MODELS = {build.__name__: build for build in DECODERS}
# Llama and Mistral (a window shorter than the text) with every mask, the others with two.
PAIRS = [(name, mask) for name in MODELS for mask in (MASKS if name in ("llama", "mistral") else MASKS[1:5:2])]
NEW = 5
PADDING = (0, 3)


def greedy_by_hand(model, mask, ids, real):
    """Token ids and logits of each step, by a forward pass on the whole prefix without a cache."""
    model.set_attn_implementation(by_hand(mask))
    steps = []
    for _ in range(NEW):
        LEFT[ids.shape[1]] = list(PADDING)
        inputs = {"attention_mask": real, "position_ids": text_positions(real)}
        steps.append(model(input_ids=ids, **inputs, use_cache=False).logits[:, -1])
        ids = torch.cat([ids, steps[-1].argmax(dim=-1, keepdim=True)], dim=1)
        real = torch.nn.functional.pad(real, (0, 1), value=1)
    return ids, torch.stack(steps, dim=1)


@pytest.mark.parametrize(("kind", "mask"), PAIRS)
@torch.no_grad()
def test_generate_is_the_mask_by_hand_on_whole_texts(kind, mask):
    model = make(MODELS[kind])
    ids, real = padded_batch(7, PADDING, (0, 0))
    tokens, logits = greedy_by_hand(model, mask, ids, real)
    model.set_attn_implementation(register_attention(mask))
    for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        made = model.generate(
            input_ids=ids, attention_mask=real, max_new_tokens=NEW, do_sample=False, pad_token_id=0,
            return_dict_in_generate=True, output_logits=True, **options,
        )  # fmt: skip
        assert made.sequences.equal(tokens), options
        # `generate` hands logits out in fp32.
        torch.testing.assert_close(torch.stack(made.logits, dim=1), logits.float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "llama4"])
@torch.no_grad()
def test_a_prompt_in_pieces_is_the_prompt(kind, mask):
    """Several queries against a cache, also one that has dropped keys and one that is longer than the text."""
    from transformers import DynamicCache, StaticCache

    model = make(MODELS[kind])
    ids, real = padded_batch(14, PADDING, (0, 0))
    positions = text_positions(real)
    model.set_attn_implementation(by_hand(mask))
    whole = model(input_ids=ids, attention_mask=real, position_ids=positions, use_cache=False).logits
    model.set_attn_implementation(register_attention(mask))
    for cache in (
        DynamicCache(config=model.config),
        StaticCache(config=model.config, max_cache_len=20),
        DynamicCache(),
    ):
        pieces, start = [], 0
        for end in (4, 9, 10, 14):
            step = {"attention_mask": real[:, :end], "position_ids": positions[:, start:end], "cache": cache}
            pieces.append(model(input_ids=ids[:, start:end], **step).logits)
            start = end
        seen = real.bool()
        # Llama 4 rotates in fp32, whatever its dtype.
        tolerance = 1e-6 if kind == "llama4" else 1e-9
        torch.testing.assert_close(torch.cat(pieces, dim=1)[seen], whole[seen], atol=tolerance, rtol=tolerance)


def test_the_cache_of_a_window_really_dropped_keys():
    from transformers import DynamicCache

    model = make(mistral)
    cache = DynamicCache(config=model.config)
    model(input_ids=padded_batch(14, (0,), (0,))[0], cache=cache)
    assert cache.get_mask_sizes(1, 0) == (5, 10)


@pytest.mark.parametrize("mask", CROSS_MASKS)
@pytest.mark.parametrize("build", [t5, bart])
@torch.no_grad()
def test_encoder_and_decoder_generate_as_by_hand(build, mask):
    model = make(build)
    ids, real = padded_batch(9, (0, 3), (2, 0))
    later = torch.full((2, 1), model.config.decoder_start_token_id)
    options = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "num_beams": 1,
        "forced_eos_token_id": None,
        "eos_token_id": None,
    }
    model.set_attn_implementation(by_hand(mask))
    steps = []
    for length in range(1, NEW + 1):
        LEFT[length] = [0, 0]
        logits = model(input_ids=ids, attention_mask=real, decoder_input_ids=later, use_cache=False).logits
        steps.append(logits[:, -1])
        later = torch.cat([later, steps[-1].argmax(dim=-1, keepdim=True)], dim=1)
    model.set_attn_implementation(register_attention(mask))
    made = model.generate(
        input_ids=ids, attention_mask=real, return_dict_in_generate=True, output_logits=True, **options
    )
    assert made.sequences.equal(later)
    expected = torch.stack(steps, dim=1).float()
    torch.testing.assert_close(torch.stack(made.logits, dim=1), expected, atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_beams_reorder_the_cache():
    model = make(MODELS["llama"])
    ids, real = padded_batch(7, PADDING, (0, 0))
    model.set_attn_implementation(register_attention("topk:3+sink:1"))
    options = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    cached, whole = (
        model.generate(input_ids=ids, attention_mask=real, use_cache=use, **options) for use in (True, False)
    )
    assert cached.equal(whole)


@pytest.mark.parametrize("mask", ["topk:3+sink:1", "banded:5"])
@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "llama4"])
@torch.no_grad()
def test_one_text_and_guessed_tokens(kind, mask):
    """A text alone is the text in a padded batch; tokens that are guessed, tried several at a time and taken back change nothing."""
    model = make(MODELS[kind], torch.float32)
    model.set_attn_implementation(register_attention(mask))
    ids, real = padded_batch(7, PADDING, (0, 0))
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    together = model.generate(input_ids=ids, attention_mask=real, **options)
    for row, padding in enumerate(PADDING):
        text = ids[row : row + 1, padding:]
        for way in ({}, {"prompt_lookup_num_tokens": 2}, {"assistant_model": model}):
            assert model.generate(input_ids=text, **options, **way).equal(together[row : row + 1, padding:]), way
