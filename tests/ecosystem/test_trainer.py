"""A plain `Trainer` with the collators of Transformers, PEFT's LoRA, and the pipeline of the masked LM."""

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from hf_semfocus import (
    SemFocusConfig,
    SemFocusForMaskedLM,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
)
from hf_semfocus.data import build_tokenizer

TEXTS = ["0 1 0 1 0 1 0 1 0", "1 0 1 0", "0 1 0 1 0 1", "1 0 1 0 1 0 1 0"]  # every symbol is told by its neighbour


def make(cls, **fields):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 16}
    return cls(SemFocusConfig(**{"vocab_size": 6, "mask": "topk:3+sink:1", "num_labels": 2} | sizes | fields))


def rows(cls):
    tokenizer = build_tokenizer("parity_check")
    table = []
    for text in TEXTS * 2:
        row = dict(tokenizer(text))
        if cls is SemFocusForSequenceClassification:
            row["labels"] = int(text.startswith("1"))
        elif cls is SemFocusForTokenClassification:
            row["labels"] = [number - 4 for number in row["input_ids"]]
        table.append(row)
    return tokenizer, Dataset.from_list(table)


COLLATORS = {
    SemFocusForSequenceClassification: DataCollatorWithPadding,
    SemFocusForTokenClassification: DataCollatorForTokenClassification,
    SemFocusForMaskedLM: lambda tokenizer: DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3, seed=1),
}


@pytest.mark.parametrize("fields", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=["", "bf16", "saving"])
@pytest.mark.parametrize("cls", COLLATORS)
def test_trainer_with_the_collators_of_transformers(cls, fields, tmp_path):
    tokenizer, data = rows(cls)
    model = make(cls)
    arguments = TrainingArguments(
        tmp_path, num_train_epochs=20, per_device_train_batch_size=4, learning_rate=0.01, logging_steps=1, seed=3,
        report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no", **fields,
    )  # fmt: skip
    trainer = Trainer(model, arguments, COLLATORS[cls](tokenizer), train_dataset=data, eval_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    assert trainer.evaluate()["eval_loss"] > 0
    logits = trainer.predict(data).predictions
    assert logits.shape[0] == len(data)
    trainer.save_model(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in names
    assert not [name for name in names if name.endswith(".pt") or name == "pytorch_model.bin"]
    loaded = cls.from_pretrained(tmp_path / "model")
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_the_pipeline_fills_masks(tmp_path):
    tokenizer, _ = rows(SemFocusForMaskedLM)
    model = make(SemFocusForMaskedLM, mask="banded:3")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        chosen = (torch.rand(batch["input_ids"].shape, generator=generator) < 0.25) & batch["attention_mask"].bool()
        masked = batch["input_ids"].masked_fill(chosen, tokenizer.mask_token_id)
        labels = batch["input_ids"].masked_fill(~chosen, -100)
        if chosen.any():
            model(masked, batch["attention_mask"], labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).mask_token == "[MASK]"
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path)) is SemFocusForMaskedLM
    fill = pipeline("fill-mask", model=str(tmp_path), trust_remote_code=True)
    for text, token in (("0 1 0 [MASK] 0 1", "1"), ("1 0 1 0 [MASK] 0 1 0", "1"), ("[MASK] 1 0 1", "0")):
        best = fill(text, top_k=1)[0]
        assert best["token_str"] == token
        assert best["sequence"] == text.replace("[MASK]", token)
