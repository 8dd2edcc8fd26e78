"""One local Hub for all tests of this folder."""

from collections.abc import Iterator

import pytest

from .server import Hub


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    hub = Hub(tmp_path_factory.mktemp("hub"))
    yield hub
    hub.stop()
