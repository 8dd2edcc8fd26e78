"""Tasks of hf_semfocus as `datasets`: 15 tasks of the Chomsky hierarchy and ListOps, with tokenizers and collators."""

from .collators import TaskCollator
from .core.task import Task
from .core.uniform import UniformWords
from .export import generate
from .loading import build_task, load_metric, load_task
from .metrics import compute_metrics
from .statistics import label_statistics
from .tasks import TaskInfo, list_tasks, register_task, task_info
from .tokenizer import build_tokenizer

__all__ = [
    "Task",
    "TaskCollator",
    "TaskInfo",
    "UniformWords",
    "build_task",
    "build_tokenizer",
    "compute_metrics",
    "generate",
    "label_statistics",
    "list_tasks",
    "load_metric",
    "load_task",
    "register_task",
    "task_info",
]
