"""What users turn on in a `Trainer`: each has a right outcome, or an error of Transformers itself."""

import functools

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification, SemFocusForTokenClassification
from hf_semfocus.data import TaskCollator, compute_metrics, load_task

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}


@functools.cache
def rows(task="even_pairs", length=14):
    return load_task(
        task,
        length=length,
        train_size=1000,
        validation_size=100,
        test_size=100,
        allow_duplicates=isinstance(length, tuple),
    )


def trainer(
    folder, data, *, cls=SemFocusForSequenceClassification, collator=None, callbacks=(), fields=None, **options
):
    torch.manual_seed(0)
    model = cls(SemFocusConfig(**{"vocab_size": 16, "num_labels": 2, "mask": "topk:5"} | SMALL | (fields or {})))
    settings = {
        "per_device_train_batch_size": 20, "num_train_epochs": 1, "learning_rate": 3e-3, "save_strategy": "no", "seed": 1,
        "report_to": "none", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    return Trainer(
        model, TrainingArguments(str(folder), **settings | options), collator or TaskCollator(0),
        train_dataset=data["train"], eval_dataset=data["test"], compute_metrics=compute_metrics, callbacks=list(callbacks),
    )  # fmt: skip


class Wrecked(TrainerCallback):
    """After an epoch, loses what was learnt."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_begin(self, args, state, control, model=None, **_):
        if round(state.epoch) == self.epoch:
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter)


@pytest.mark.parametrize("mask", ["topk:5", "topk:5+cluster:2"])
def test_the_best_epoch_is_the_one_that_is_loaded(mask, tmp_path):
    best = trainer(
        tmp_path, rows(), fields={"mask": mask}, callbacks=[Wrecked(4)], num_train_epochs=5, lr_scheduler_type="constant",
        eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy",
    )  # fmt: skip
    best.train()
    accuracy = [entry["eval_accuracy"] for entry in best.state.log_history if "eval_accuracy" in entry]
    assert max(accuracy) > 0.9
    assert accuracy[-1] < 0.8
    epoch = 1 + accuracy.index(max(accuracy))
    assert best.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{50 * epoch}")
    saved = load_file(tmp_path / f"checkpoint-{50 * epoch}" / "model.safetensors")
    assert saved.keys() == best.model.state_dict().keys()
    for name, tensor in best.model.state_dict().items():
        assert torch.equal(tensor, saved[name]), name
    assert best.evaluate()["eval_accuracy"] == max(accuracy)


def test_a_metric_that_is_not_there_fails_at_the_first_evaluation(tmp_path):
    wrong = trainer(
        tmp_path, rows(), eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="f1",
    )  # fmt: skip
    with pytest.raises(KeyError, match="eval_f1"):
        wrong.train()


@pytest.mark.parametrize(
    ("cls", "task"),
    [(SemFocusForSequenceClassification, "even_pairs"), (SemFocusForTokenClassification, "reverse_string")],
)
def test_nested_outputs_reach_the_metrics(cls, task, tmp_path):
    data, fields = rows(task, (8, 14)), {"output_hidden_states": True, "output_attentions": True}
    plain = trainer(tmp_path, data, cls=cls, per_device_eval_batch_size=7)  # batches of several lengths
    more = trainer(tmp_path, data, cls=cls, fields=fields, per_device_eval_batch_size=7)
    assert more.evaluate()["eval_accuracy" if task == "even_pairs" else "eval_token_accuracy"] >= 0
    expected, found = plain.predict(data["test"]), more.predict(data["test"])
    logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
    assert (logits == expected.predictions).all()


def test_rows_of_like_length_are_trained_together(tmp_path):
    def padding(strategy):
        one = trainer(tmp_path, rows(length=(4, 14)), train_sampling_strategy=strategy, per_device_train_batch_size=5)
        batches = list(one.get_train_dataloader())
        assert sum(len(batch["labels"]) for batch in batches) == 1000
        return sum(int((1 - batch["attention_mask"]).sum()) for batch in batches if "attention_mask" in batch)

    assert padding("group_by_length") < 0.3 * padding("random")


@pytest.mark.parametrize(
    ("cls", "task"),
    [(SemFocusForSequenceClassification, "even_pairs"), (SemFocusForTokenClassification, "reverse_string")],
)
def test_label_smoothing_is_that_of_the_definition(cls, task, tmp_path):
    data = rows(task)
    smooth = trainer(tmp_path, data, cls=cls, label_smoothing_factor=0.2)
    batch = TaskCollator(0)([data["test"][index] for index in range(10)])
    loss = smooth.compute_loss(smooth.model.eval(), dict(batch))
    logits = smooth.model(batch["input_ids"]).logits.flatten(0, -2)
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)
    smooth.train()
