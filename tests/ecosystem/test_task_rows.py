"""Rows of our tasks under a plain `Trainer`: our collator and those of Transformers train the same model, and metrics come out."""

import pytest
import torch
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification, SemFocusForTokenClassification
from hf_semfocus.data import TaskCollator, build_tokenizer, compute_metrics, load_task, task_info

CASES = {
    "missing_duplicate_string": (SemFocusForSequenceClassification, DataCollatorWithPadding),
    "stack_manipulation": (SemFocusForTokenClassification, DataCollatorForTokenClassification),
}


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("task", CASES)
def test_our_collator_and_theirs_train_the_same_model(task, bf16, tmp_path):
    cls, theirs = CASES[task]
    data = load_task(task, length=(12, 20), train_size=64, validation_size=10, test_size=21)
    tokenizer, labels = build_tokenizer(task), task_info(task).labels
    results = []
    flags = {"output_attentions": True, "output_hidden_states": True}
    for collator, in_config in ((TaskCollator, {}), (theirs, flags)):
        set_seed(0)
        config = SemFocusConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, mask="topk:3+sink:1",
            id2label=dict(enumerate(labels)), **in_config,
        )  # fmt: skip
        arguments = TrainingArguments(
            tmp_path / collator.__name__, num_train_epochs=2, per_device_train_batch_size=16, learning_rate=0.01,
            optim="sgd", logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no", bf16=bf16,
        )  # fmt: skip
        trainer = Trainer(
            cls(config), arguments, collator(tokenizer), data["train"], data["test"], compute_metrics=compute_metrics
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        results.append((losses, trainer.evaluate(), trainer.model.state_dict(), trainer.predict(data["test"])))
    (losses, metrics, weights, predicted), (other_losses, other_metrics, other_weights, other_predicted) = results
    assert len(losses) == 8
    assert losses == pytest.approx(other_losses, rel=1e-3)
    for name, tensor in weights.items():
        assert torch.allclose(tensor, other_weights[name], atol=1e-3 if bf16 else 1e-5), name
    assert metrics["eval_loss"] == pytest.approx(other_metrics["eval_loss"], rel=1e-3)
    assert 0 <= metrics["eval_accuracy"] <= 1
    right = 0
    for row in data["test"]:
        with torch.no_grad():
            logits = trainer.model(torch.tensor([row["input_ids"]])).logits[0]
        expected = torch.tensor(row["labels"])
        right += bool(((logits.argmax(-1) == expected) | (expected == -100)).all())
    if not bf16:  # there the Trainer evaluates in bf16
        assert other_metrics["eval_accuracy"] == pytest.approx(right / 21)
    assert predicted.predictions.shape == other_predicted.predictions.shape
