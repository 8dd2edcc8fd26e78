"""What importing the package costs and does; the examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import hf_semfocus
import hf_semfocus.model

from .isolated import run

MODULES = sorted(module.name for module in pkgutil.iter_modules(hf_semfocus.model.__path__))


def test_the_package_adds_at_most_half_a_second(tmp_path):
    code = """
import time
from transformers import PreTrainedModel, AutoModel
start = time.process_time()
import hf_semfocus
print(time.process_time() - start)
"""
    # Processor time: the modules read little, and a core that other processes share is not the package's fault.
    assert float(run(code, tmp_path, package=True)) <= 0.5


def test_public_names_exist():
    assert set(hf_semfocus.__all__) <= set(dir(hf_semfocus))
    assert {
        "SemFocusConfig", "SemFocusModel", "SemFocusForSequenceClassification", "SemFocusForTokenClassification",
        "SemFocusForMaskedLM", "MaskStrategy", "register_mask_strategy", "parse_mask", "list_mask_strategies",
    } <= set(hf_semfocus.__all__)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"hf_semfocus.model.{name}")
    from hf_semfocus.model import mask_registry

    before = dict(mask_registry._REGISTRY)
    names = {**vars(hf_semfocus), "torch": torch, **vars(module)}
    try:
        result = doctest.testmod(module, extraglobs=names)
    finally:
        mask_registry._REGISTRY.clear()
        mask_registry._REGISTRY.update(before)
    assert result.failed == 0
