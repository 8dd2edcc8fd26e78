"""Tasks of hf_semfocus as `datasets`: 15 tasks of the Chomsky hierarchy and ListOps, with tokenizers and collators."""

from .collators import TaskCollator
from .export import generate
from .loading import build_task, load_task
from .metrics import compute_metrics, load_metric
from .statistics import label_statistics
from .tasks import TaskInfo, list_tasks, task_info
from .tokenizer import build_tokenizer

__all__ = [
    "TaskCollator",
    "TaskInfo",
    "build_task",
    "build_tokenizer",
    "compute_metrics",
    "generate",
    "label_statistics",
    "list_tasks",
    "load_metric",
    "load_task",
    "task_info",
]
