"""Train a task by hand, with Accelerate and without Trainer, on one device or on several.

accelerate launch --config_file recipes/accelerate/two.yaml recipes/accelerator_loop.py even_pairs topk:5 runs/by-hand --length 20
"""

import argparse
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader

from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification, SemFocusForTokenClassification
from hf_semfocus.data import TaskCollator, build_tokenizer, load_task, task_info


def train(task: str, mask: str, output: str, epochs: int = 10, **data_options: Any) -> float:
    """Held-out accuracy of whole rows after the last epoch; the model and its tokenizer are saved in `output`."""
    # The processes share each batch, and its order has a seed of its own: a run is the same on one and on two.
    loading = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(cpu=not torch.accelerator.is_available(), dataloader_config=loading)
    with accelerator.main_process_first():  # one process makes the rows, the others read them
        data = load_task(task, **data_options).select_columns(["input_ids", "labels"])
    tokenizer, info = build_tokenizer(task), task_info(task)
    collate = TaskCollator(tokenizer)
    set_seed(0)  # the next lines draw the initial weights
    cls = SemFocusForTokenClassification if info.kind == "token_classification" else SemFocusForSequenceClassification
    model = cls(SemFocusConfig(mask=mask, vocab_size=len(tokenizer), id2label=dict(enumerate(info.labels))))
    model, optimizer, train_rows, test_rows = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        DataLoader(data["train"], batch_size=100, shuffle=True, collate_fn=collate),
        DataLoader(data["test"], batch_size=100, collate_fn=collate),
    )
    for epoch in range(1, epochs + 1):
        model.train()
        for batch in train_rows:
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        right = []
        for batch in test_rows:
            with torch.no_grad():
                predicted = model(**batch).logits.argmax(-1)
            tokens = (predicted == batch["labels"]) | (batch["labels"] == -100)
            right.append(accelerator.gather_for_metrics(tokens.view(len(tokens), -1).all(-1)))
        accuracy = torch.cat(right).float().mean().item()
        accelerator.print(f"epoch {epoch}: held-out accuracy {accuracy:.3f}")
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(output)
        tokenizer.save_pretrained(output)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("task", "mask", "output"):
        parser.add_argument(name)
    for name in ("epochs", "length", "train-size", "test-size"):
        parser.add_argument(f"--{name}", type=int, default=argparse.SUPPRESS)
    train(**vars(parser.parse_args()))
    # A process that ends with its group's threads at work may abort; one that ends them before its model is gone may hang.
    PartialState().destroy_process_group()
