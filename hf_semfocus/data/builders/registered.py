"""The builder of tasks that a user has registered."""

from .common import TaskBuilder


class Registered(TaskBuilder):
    """A task of :func:`~hf_semfocus.data.register_task`: ``Registered(config_name="first_is_last", length=40)``."""
