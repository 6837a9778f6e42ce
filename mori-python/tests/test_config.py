"""Configurations: positional and keyword forms, attributes, what is refused."""

import pytest

from mori.io import (
    BackendType,
    FabricBackendConfig,
    IOEngine,
    IOEngineConfig,
    PollCqMode,
    RdmaBackendConfig,
    TcpBackendConfig,
    XgmiBackendConfig,
)

RDMA = {
    "qp_per_transfer": 1,
    "post_batch_size": -1,
    "num_worker_threads": -1,
    "poll_cq_mode": PollCqMode.POLLING,
    "enable_notification": True,
    "notif_per_qp": 1024,
    "enable_transfer_chunking": False,
    "chunk_bytes": 65536,
    "max_chunks_per_transfer": 64,
    "num_nics_per_transfer": 1,
}
OTHER = (4, 8, 2, PollCqMode.EVENT, False, 16, True, 4096, 2, 3)


def values(config):
    return {name: getattr(config, name) for name in RDMA}


def test_rdma_defaults_positions_and_keywords():
    assert values(RdmaBackendConfig()) == RDMA
    wanted = dict(zip(RDMA, OTHER))
    assert values(RdmaBackendConfig(*OTHER)) == wanted
    assert values(RdmaBackendConfig(**wanted)) == wanted
    assert RdmaBackendConfig(*OTHER) == RdmaBackendConfig(**wanted) != RdmaBackendConfig()
    assert "qp_per_transfer=4" in repr(RdmaBackendConfig(*OTHER))


def test_rdma_attributes_can_be_set():
    config = RdmaBackendConfig()
    for name, value in zip(RDMA, OTHER):
        setattr(config, name, value)
    assert values(config) == dict(zip(RDMA, OTHER))
    for name in ("max_send_wr", "max_cqe_num", "max_msg_sge"):
        assert getattr(config, name) == 0
        setattr(config, name, 7)
        assert getattr(config, name) == 7


@pytest.mark.parametrize("kind", [XgmiBackendConfig, FabricBackendConfig])
def test_streams_and_events(kind):
    assert (kind().num_streams, kind().num_events) == (64, 64)
    assert kind(1, 2) == kind(num_streams=1, num_events=2)
    config = kind()
    config.num_streams, config.num_events = 3, 4
    assert (config.num_streams, config.num_events) == (3, 4)


def test_engine_configuration():
    assert (IOEngineConfig().host, IOEngineConfig().port) == ("", 0)
    config = IOEngineConfig("localhost", 65535)
    assert config == IOEngineConfig(host="localhost", port=65535)
    config.host, config.port = "::1", 1
    assert (config.host, config.port) == ("::1", 1)


@pytest.mark.parametrize("port", [-1, 65536, 10**30])
def test_a_port_that_is_none_is_a_value_error(port):
    with pytest.raises(ValueError):
        IOEngineConfig("", port)
    config = IOEngineConfig()
    with pytest.raises(ValueError):
        config.port = port


@pytest.mark.parametrize("port", [None, 1.5, "80", [1]])
def test_a_port_of_another_type_is_a_type_error(port):
    with pytest.raises(TypeError):
        IOEngineConfig("", port)


@pytest.mark.parametrize("arguments", [(None,), ("", 0, 0), (1,)])
def test_engine_configurations_of_other_types_are_refused(arguments):
    with pytest.raises(TypeError):
        IOEngineConfig(*arguments)


@pytest.mark.parametrize("name, value", [("qp_per_transfer", 1.5), ("poll_cq_mode", 0), ("enable_notification", 3)])
def test_rdma_values_of_other_types_are_refused(name, value):
    with pytest.raises(TypeError):
        RdmaBackendConfig(**{name: value})
    with pytest.raises(TypeError):
        setattr(RdmaBackendConfig(), name, value)


def test_tcp_configuration_hides_its_secret():
    config = TcpBackendConfig(secret=b"swordfish", connections=4, peer_timeout=3.5)
    assert config.secret == b"swordfish" and config.connections == 4 and config.peer_timeout == 3.5
    assert "swordfish" not in repr(config)
    config.secret = None
    assert config.secret is None
    assert config == TcpBackendConfig(connections=4, peer_timeout=3.5)
    with pytest.raises(TypeError):
        TcpBackendConfig("positional")


@pytest.mark.parametrize("name, value", [("connections", 0), ("peer_timeout", -1.0), ("chunk_bytes", 1), ("secret", b"")])
def test_a_bad_tcp_configuration_is_a_value_error_that_names_the_field(name, value):
    engine = IOEngine("bad", IOEngineConfig())
    with pytest.raises(ValueError, match=name):
        engine.create_backend(BackendType.TCP, TcpBackendConfig(**{name: value}))
    engine.create_backend(BackendType.TCP)


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"])
def test_hosts_resolve_and_a_free_port_is_told(host):
    engine = IOEngine("hosts", IOEngineConfig(host, 0))
    try:
        engine.create_backend(BackendType.TCP)
    except RuntimeError as error:
        if ":" in host:
            pytest.skip(f"this machine has no IPv6: {error}")
        raise
    assert engine.get_engine_desc().port > 0
    assert engine.get_engine_desc().host


def test_a_taken_port_is_a_runtime_error():
    first = IOEngine("first", IOEngineConfig("127.0.0.1", 0))
    first.create_backend(BackendType.TCP)
    second = IOEngine("second", IOEngineConfig("127.0.0.1", first.get_engine_desc().port))
    with pytest.raises(RuntimeError) as caught:
        second.create_backend(BackendType.TCP)
    assert caught.value.cause[0] == "errno"
