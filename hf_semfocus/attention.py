"""Attention on plain tensors; a face of :mod:`hf_semfocus.model`."""

from hf_semfocus.model.attention_reference import reference_attention
from hf_semfocus.model.attention_sparse import choose_path, sparse_attention

__all__ = ["choose_path", "reference_attention", "sparse_attention"]
