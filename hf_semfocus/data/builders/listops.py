"""The ListOps builder."""

from .common import TaskBuilder, configs


class ListOps(TaskBuilder):
    """ListOps of Long Range Arena, conditioned on a range of lengths: ``ListOps(length=(500, 600))``.

    Example:
        >>> builder = ListOps(length=(4, 30), train_size=100, validation_size=10, test_size=10)
        >>> builder.download_and_prepare()
        >>> builder.as_dataset()["train"].num_rows
        100
    """

    BUILDER_CONFIGS = configs(["listops"])
