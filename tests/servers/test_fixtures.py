"""The fixtures with servers."""

from collections.abc import Callable

from tests.servers.brokers import NatsServer, RedisServer


def test_the_shared_servers_are_running(redis_server: RedisServer, nats_server: NatsServer) -> None:
    assert redis_server.pid != nats_server.pid


def test_a_test_may_kill_the_servers_of_its_own(
    redis_server: RedisServer, own_redis: Callable[..., RedisServer], own_nats: Callable[..., NatsServer]
) -> None:
    redis, nats = own_redis(password="secret"), own_nats(max_payload=1000)
    assert redis.port != redis_server.port
    redis.kill()
    nats.kill()
    nats.start()
