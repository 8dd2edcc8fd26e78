"""The NNCH builder: one configuration for each of the 15 tasks of "Neural Networks and the Chomsky Hierarchy"."""

from ..tasks import list_tasks
from .common import TaskBuilder, configs


class NNCH(TaskBuilder):
    """Tasks of Delétang et al. (2023): ``NNCH(config_name="parity_check", length=40, seed=0)``.

    Example:
        >>> builder = NNCH(config_name="even_pairs", train_size=100, validation_size=10, test_size=10)
        >>> builder.download_and_prepare()
        >>> builder.as_dataset()["train"].num_rows
        100
    """

    BUILDER_CONFIGS = configs(list_tasks("nnch"))
