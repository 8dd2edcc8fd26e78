"""Attention on plain tensors; a face of :mod:`hf_semfocus.model`."""

from hf_semfocus.model.attention_reference import reference_attention

__all__ = ["reference_attention"]
