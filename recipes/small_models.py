"""A small model of every architecture that the installed Transformers has, from its own default configuration.

Sizes are lowered by their names, so a new architecture needs nothing here as long as it calls them as others do.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LENGTHS = (9, 6)
VOCABULARY = 99
LARGEST = 20_000_000  # parameters

#: A field of one of these names is lowered to the number.
SIZES = {
    99: "vocab_size text_vocab_size vocab_size_per_layer_input input_vocab_size output_vocab_size unpadded_vocab_size",
    64: "max_position_embeddings n_positions max_target_positions n_ctx context_length max_seq_len seq_length",
    48: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff mlp_dim moe_intermediate_size d_inner n_inner "
    "shared_expert_intermediate_size ffn_hidden_size moe_shared_expert_intermediate_size shared_intermediate_size "
    "intermediate_size_mlp dense_intermediate_size decoder_intermediate_size expert_intermediate_size moe_ffn_hidden_size "
    "expert_ffn_hidden_size linear_units encoder_hidden_dim decoder_ff_dim dim_feedforward mlp_hidden_size",
    32: "hidden_size d_model n_embd dim embed_dim embedding_size emb_dim decoder_hidden_size encoder_hidden_size "
    "text_hidden_size projection_dim word_embed_proj_dim out_hidden_size vision_output_dim output_dim embedding_dim "
    "cross_attention_hidden_size audio_hidden_size feature_size projector_hidden_size hidden_size_global lru_width "
    "pooler_output_size output_hidden_size vision_hidden_size attention_hidden_size backbone_hidden_size decoder_dim "
    "vision_embed_dim classifier_proj_size",
    16: "qk_head_dim kv_lora_rank q_lora_rank o_lora_rank image_size max_source_positions mamba_d_head mamba_head_dim mamba_headdim "
    "hidden_size_per_layer_input context_size",
    8: "head_dim d_kv kv_channels v_head_dim qk_nope_head_dim qk_rope_head_dim d_head swa_head_dim attention_head_dim "
    "dim_head index_head_dim "
    "linear_key_head_dim linear_value_head_dim linear_head_dim num_mel_bins sliding_window patch_size state_size "
    "mamba_d_state ssm_state_size global_head_dim swa_v_head_dim expert_capacity rotary_dim block_size index_topk chunk_size "
    "attention_chunk_size mamba_chunk_size local_attention",
    7: "conv_depthwise_kernel_size",
    4: "num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads attention_heads "
    "n_attn_heads decoder_num_attention_heads encoder_num_attention_heads num_experts num_local_experts n_routed_experts "
    "moe_num_experts swa_num_attention_heads index_n_heads linear_num_heads mamba_n_heads "
    "mamba_num_heads time_step_rank",
    2: "num_hidden_layers num_layers encoder_layers decoder_layers n_layer n_layers depth layers num_encoder_layers "
    "num_decoder_layers num_decoder_hidden_layers decoder_num_hidden_layers decoder_num_layers encoder_num_hidden_layers "
    "num_blocks num_key_value_heads n_kv_heads num_kv_heads encoder_num_key_value_heads decoder_num_key_value_heads "
    "multi_query_group_num top_k moe_topk num_experts_per_tok num_experts_per_token moe_k linear_num_key_heads "
    "linear_num_value_heads moe_top_k swa_num_key_value_heads num_global_key_value_heads num_query_groups "
    "num_conv_pos_embedding_groups",
    1: "n_group topk_group num_expert_group n_groups mamba_n_groups first_k_dense_replace n_shared_experts "
    "num_nextn_predict_layers",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
KINDS_OF_LAYERS = ("layer_types", "layers_block_type", "mlp_layer_types")

#: What names do not tell.
ROTATION: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
SECTIONS: dict[str, dict[str, Any]] = {"rope_parameters": {**ROTATION, "mrope_section": [2, 1, 1]}}
OVERRIDES: dict[str, dict[str, Any]] = {
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_n_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "hunyuan_v1_dense": {"rope_parameters": ROTATION, "head_dim": 8},
    "hunyuan_v1_moe": {"rope_parameters": ROTATION, "head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"rope_parameters": ROTATION, "head_dim": 8},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "zamba2": {"n_mamba_heads": 4, "attention_head_dim": 16, "attention_hidden_size": 64},
    "glm5_next_text": {"index_kpool": 1},
    "deepseek_v2": {"topk_method": "greedy", "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 32},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "step3p7": {"sliding_window": 8},
    "qwen2_vl_text": SECTIONS,
    "qwen2_5_vl_text": SECTIONS,
    "hy_v4_vl_text": SECTIONS,
    **{
        name: {"rope_parameters": SECTIONS["rope_parameters"] | {"partial_rotary_factor": 1.0}}
        for name in ("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text")
    },
}

MAPPINGS = [
    getattr(modeling_auto, f"MODEL_{name}MAPPING")
    for name in (
        "FOR_SEQ_TO_SEQ_CAUSAL_LM_", "FOR_CAUSAL_LM_", "FOR_MASKED_LM_", "FOR_IMAGE_CLASSIFICATION_",
        "FOR_SPEECH_SEQ_2_SEQ_", "FOR_IMAGE_TEXT_TO_TEXT_", "", "FOR_PRETRAINING_",
    )
]  # fmt: skip


def architectures() -> Iterator[tuple[str, type[PreTrainedModel]]]:
    """Name and class of every architecture that Transformers itself has a model for."""
    for name in CONFIG_MAPPING:
        model = None
        for mapping in MAPPINGS:
            try:
                model = mapping[CONFIG_MAPPING[name]]
                break
            except (KeyError, ValueError, ImportError, AttributeError):
                continue
        model = model[0] if isinstance(model, tuple) else model
        if model is not None and model.__module__.startswith("transformers."):
            yield name, model


def small_model(name: str, cls: type[PreTrainedModel]) -> PreTrainedModel:
    """A model of the architecture with spread-out weights, so that attention is neither uniform nor one key's.

    Raises:
        Exception: whatever Transformers raises for a configuration of such sizes; ValueError if the model is still large.
    """
    config = CONFIG_MAPPING[name]()
    fields = {
        k: v for k, v in config.to_dict().items() if k not in ("transformers_version", "model_type", "architectures")
    }
    config = type(config)(**_lowered(fields, {}) | OVERRIDES.get(name, {}))
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls(config).parameters())
    if size > LARGEST:
        raise ValueError(f"it has {size / 1e6:.0f} million parameters even so")
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() > 1 and "emb" not in path and "wte" not in path and "shared" not in path:
                parameter.normal_(std=(parameter.numel() / parameter.shape[0]) ** -0.5)
    return model


def _lowered(fields: dict[str, Any], tokens: dict[int, int]) -> dict[str, Any]:
    """The fields of a configuration with small sizes; token ids above the vocabulary get others, the same for the same."""
    lower = dict(fields)
    for name, value in fields.items():
        token = name.endswith(("_token_id", "_token_index"))
        if name in ("out_features", "out_indices", "stage_names", "per_layer_config"):
            del lower[name]
        elif isinstance(value, dict) and name in ("rope_parameters", "rope_scaling"):
            lower[name] = _plain_rotation(value)
        elif isinstance(value, dict) and name not in ("id2label", "label2id"):
            lower[name] = _lowered(value, tokens)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0 and name in SMALL:
            lower[name] = min(SMALL[name], value)
        elif isinstance(value, int) and token and value >= 60:
            lower[name] = tokens.setdefault(value, 60 + len(tokens))
        elif isinstance(value, list) and name in ("image_size", "patch_size"):
            lower[name] = [min(SMALL[name], each) for each in value]
        elif isinstance(value, list) and token:
            lower[name] = [tokens.setdefault(each, 60 + len(tokens)) if each >= 60 else each for each in value]
    heads = ("num_attention_heads", "num_key_value_heads")
    if set(heads) <= lower.keys() and fields[heads[0]] == fields[heads[1]]:
        lower[heads[1]] = lower[heads[0]]  # latent attention has as many of the one as of the other
    kinds: list[str] = next((fields[name] for name in KINDS_OF_LAYERS if isinstance(fields.get(name), list)), [])
    layers = min(4, max(2, len(set(kinds))))
    before = next((fields[name] for name in LAYERS if isinstance(fields.get(name), int)), 0)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == before > layers:
            lower[name] = (list(dict.fromkeys(value)) * layers if name in KINDS_OF_LAYERS else value)[:layers]
        elif name in LAYERS[:4] and isinstance(value, int):
            lower[name] = layers
    return lower


def _plain_rotation(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rotary embeddings without what was learnt for long texts and large heads."""
    if any(isinstance(value, dict) for value in parameters.values()):
        return {
            kind: _plain_rotation(value) if isinstance(value, dict) else value for kind, value in parameters.items()
        }
    names = ("rope_theta", "partial_rotary_factor", "llama_4_scaling_beta", "original_max_position_embeddings")
    kept = {key: parameters[key] for key in names if parameters.get(key) is not None}
    sections = {"mrope_section": [2, 1, 1]} if "mrope_section" in parameters else {}
    return {"rope_theta": 10000.0, "rope_type": "default"} | kept | sections


def small_inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Two texts, the second one shorter and padded on its right; or images, or sound, as the model's forward pass takes them."""
    generator = torch.Generator().manual_seed(1)
    takes = inspect.signature(model.forward).parameters
    kind = model.main_input_name
    dtype = next(model.parameters()).dtype
    if kind == "input_ids" and "input_ids" in takes:
        ids = torch.randint(5, 60, (len(LENGTHS), max(LENGTHS)), generator=generator)
        inputs = {"input_ids": ids}
        if "attention_mask" in takes:
            inputs["attention_mask"] = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
        if "decoder_input_ids" in takes and model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(5, 60, (len(LENGTHS), 5), generator=generator)
        return inputs
    if kind == "pixel_values" and "pixel_values" in takes:
        config = getattr(model.config, "vision_config", model.config)
        size = getattr(config, "image_size", 16)
        shape = (getattr(config, "num_channels", 3), *(size if isinstance(size, (list, tuple)) else (size, size)))
        frames = getattr(config, "num_frames", None)
        shape = shape if frames is None else (frames, *shape)
        inputs = {"pixel_values": torch.rand(2, *shape, generator=generator, dtype=dtype)}
        if "input_ids" in takes:
            inputs["input_ids"] = torch.randint(5, 60, (2, 6), generator=generator)
        return inputs
    if kind == "input_values":
        return {kind: torch.randn(2, 2000, generator=generator, dtype=dtype)}
    if kind == "input_features":
        bins = getattr(model.config, "num_mel_bins", 8)
        inputs = {kind: torch.randn(2, bins, 32, generator=generator, dtype=dtype)}
        if "decoder_input_ids" in takes:
            inputs["decoder_input_ids"] = torch.randint(5, 60, (2, 5), generator=generator)
        return inputs
    raise ValueError(f"no inputs are known for it ({kind})")
