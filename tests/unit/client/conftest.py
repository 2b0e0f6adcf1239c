from collections.abc import Iterator

import pytest

from headrace import Client
from tests.unit.client.echo_server import EchoServer, EchoService


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.stop()


@pytest.fixture
def service(server: EchoServer) -> EchoService:
    return server.service


@pytest.fixture
def client(server: EchoServer) -> Iterator[Client]:
    with Client(server.url, timeout=10) as client:
        yield client


@pytest.fixture
def nobody() -> str:
    """An address on which nothing listens."""
    server = EchoServer()
    url = server.url
    server.stop()
    return url
