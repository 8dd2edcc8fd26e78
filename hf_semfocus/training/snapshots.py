"""A callback that stores what a model attends to on a few held-out rows, at chosen epochs."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from ..experiments.spec import RunSpec
from ..files import atomic_write
from ..integrations.evaluation import evaluating
from .rows import TensorRows
from .run_files import SNAPSHOTS

ROWS = 4


def snapshot_epochs(count: int, budget: int) -> set[int]:
    """About `count` epochs from 0 (untrained) to `budget`, closer together early on, where runs differ most.

    >>> sorted(snapshot_epochs(6, 30))
    [0, 1, 2, 5, 13, 30]
    """
    return {0, *(round(float(epoch)) for epoch in np.geomspace(1, budget, max(count - 1, 1)))} if count else set()


class SnapshotCallback(TrainerCallback):
    """Writes ``snapshots/epoch-N.npz`` below `folder`: ``weights`` float16 (rows, layers, heads, queries, keys), and ``tokens``
    (rows, keys), the text. Training is not changed: no generator is touched.

    Args:
        folder: of the run.
        batch: the rows, without labels.
        tokens: their text, a list a row.
        epochs: when; the epoch that ends the run is stored as well.
    """

    def __init__(
        self, folder: Path, batch: Mapping[str, torch.Tensor], tokens: Sequence[Sequence[str]], epochs: set[int]
    ):
        self.folder, self.batch, self.tokens, self.epochs = folder / SNAPSHOTS, batch, tokens, epochs

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Stores the untrained model's; a resumed run has done so before."""
        if state.global_step == 0:
            self._store(model, 0, state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Stores the chosen epochs, and the last."""
        if round(state.epoch) in self.epochs or control.should_training_stop:
            self._store(model, round(state.epoch), state)

    def _store(self, model: Any, epoch: int, state: Any) -> None:
        if not state.is_world_process_zero:
            return
        # Without DistributedDataParallel, which would wait for the other processes.
        model = getattr(model, "module", model)
        device = next(model.parameters()).device
        batch = {name: value.to(device) for name, value in self.batch.items()}
        with evaluating(model), torch.no_grad(), torch.random.fork_rng():
            layers = model(**batch, output_attentions=True).attentions
        weights = torch.stack(layers, dim=1).half().cpu().numpy()
        file = io.BytesIO()
        np.savez_compressed(file, weights=weights, tokens=np.array(self.tokens))
        atomic_write(self.folder / f"epoch-{epoch}.npz", file.getvalue())


def run_snapshots(spec: RunSpec, folder: Path, rows: TensorRows, tokenizer: Any) -> SnapshotCallback:
    """The callback of a run, on its first held-out rows."""
    batch = {name: value for name, value in rows.batch(slice(0, ROWS)).items() if name != "labels"}
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"].tolist()]
    return SnapshotCallback(folder, batch, tokens, snapshot_epochs(spec.training.snapshots, spec.training.epochs))
