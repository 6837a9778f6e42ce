"""Which backends there are on a machine with nothing, and what stands in."""

import logging
import os
import subprocess
import sys
import types

import pytest

import mori
from conftest import make_engine, register
from mori.io import (
    BackendType,
    FabricBackendConfig,
    IOEngine,
    IOEngineConfig,
    MemoryLocationType,
    RdmaBackendConfig,
    StatusCode,
    TcpBackendConfig,
    XgmiBackendConfig,
    set_log_level,
)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.delenv("MORI_IO_TCP_FALLBACK", raising=False)
    return IOEngine("backends", IOEngineConfig())


def test_rdma_without_a_device_is_a_runtime_error_that_says_so(engine):
    with pytest.raises(RuntimeError, match="no usable RDMA device") as caught:
        engine.create_backend(BackendType.RDMA, RdmaBackendConfig())
    assert "MORI_IO_TCP_FALLBACK" in str(caught.value) and caught.value.code is StatusCode.ERR_UNAVAILABLE


def test_tcp_stands_in_for_rdma_if_the_environment_says_so(engine, monkeypatch, caplog):
    monkeypatch.setenv("MORI_IO_TCP_FALLBACK", "1")
    monkeypatch.setenv("MORI_IO_QP_PER_TRANSFER", "4")
    with caplog.at_level(logging.WARNING):
        engine.create_backend(BackendType.RDMA, RdmaBackendConfig(qp_per_transfer=2, enable_notification=True))
    desc = engine.get_engine_desc()
    assert desc.port > 0 and desc.transports == ["tcp"]
    other = IOEngine("other", IOEngineConfig("localhost"))
    other.create_backend(BackendType.RDMA)
    mine, theirs = bytearray(64), bytearray(b"x" * 64)
    local, remote = register(engine, mine), register(other, theirs)
    engine.register_remote_engine(other.get_engine_desc())
    assert engine.read(local, 0, remote, 0, 64, 1).WaitFor(20000) is StatusCode.SUCCESS and mine == theirs
    engine.remove_backend(BackendType.RDMA)
    assert engine.read(local, 0, remote, 0, 64, 1).Code() is StatusCode.ERR_BAD_STATE
    engine.create_backend(BackendType.RDMA)


def test_the_stand_in_is_announced_once_in_a_process():
    script = (
        "from mori.io import *\n"
        "for key in 'ab':\n"
        "    engine = IOEngine(key, IOEngineConfig()); engine.create_backend(BackendType.RDMA, RdmaBackendConfig())\n"
    )
    environment = {**os.environ, "MORI_IO_TCP_FALLBACK": "1"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stderr.count("TCP") == 2 and ended.stderr.count("\n") == 1, ended.stderr


@pytest.mark.skipif(os.path.exists("/dev/kfd"), reason="this machine may have a GPU of the kind that is not to be there")
def test_xgmi_is_created_without_a_gpu_and_carries_nothing(engine):
    engine.create_backend(BackendType.XGMI, XgmiBackendConfig(num_streams=2))
    memory = bytearray(64)
    desc = register(engine, memory)
    report = engine.engine.explain(desc, desc)
    assert not report and report.considered[0][0] == "xgmi"
    engine.create_backend(BackendType.TCP)
    assert engine.engine.explain(desc, desc).chosen == "tcp"
    assert engine.read(desc, 0, desc, 32, 16, 1).WaitFor(20000) is StatusCode.SUCCESS
    assert engine.engine.receive(10.0).tag == 1
    engine.remove_backend(BackendType.XGMI)
    engine.create_backend(BackendType.XGMI)
    with pytest.raises(RuntimeError) as caught:
        engine.register_memory(4096, 10, 0, MemoryLocationType.GPU)
    assert "xgmi" in str(caught.value) and caught.value.code is StatusCode.ERR_UNAVAILABLE


def test_a_bad_xgmi_configuration_is_a_value_error(engine):
    for config in (XgmiBackendConfig(0, 1), XgmiBackendConfig(1, -1)):
        with pytest.raises(ValueError):
            engine.create_backend(BackendType.XGMI, config)


def test_a_fabric_is_a_runtime_error(engine):
    with pytest.raises(RuntimeError):
        engine.create_backend(BackendType.FABRIC, FabricBackendConfig())


def test_configurations_of_other_backends_are_type_errors(engine):
    for kind, config in (
        (BackendType.TCP, RdmaBackendConfig()),
        (BackendType.RDMA, TcpBackendConfig()),
        (BackendType.XGMI, FabricBackendConfig()),
        (BackendType.TCP, 5),
    ):
        with pytest.raises(TypeError):
            engine.create_backend(kind, config)
    for kind in (None, 3, "TCP", StatusCode.SUCCESS):
        with pytest.raises(TypeError):
            engine.create_backend(kind, None)
    with pytest.raises(ValueError):
        engine.create_backend(BackendType.Unknown)
    engine.create_backend(BackendType.TCP, None)


def test_backends_are_created_once_and_removed_once(engine):
    engine.create_backend(BackendType.TCP)
    with pytest.raises(RuntimeError, match="already"):
        engine.create_backend(BackendType.TCP)
    engine.remove_backend(BackendType.TCP)
    with pytest.raises(RuntimeError):
        engine.remove_backend(BackendType.TCP)
    assert engine.get_engine_desc().port == 0


def test_engines_of_other_types_are_refused():
    for arguments in ((), ("key",), (None, IOEngineConfig()), ("key", None), (5, IOEngineConfig()), ("key", {})):
        with pytest.raises(TypeError):
            IOEngine(*arguments)
    with pytest.raises(ValueError):
        IOEngine("", IOEngineConfig())
    engine = make_engine("types")
    for call in (engine.register_remote_engine, engine.deregister_remote_engine, engine.deregister_memory):
        for bad in (None, b"", 5, engine):
            with pytest.raises(TypeError):
                call(bad)


def test_peers_come_and_go(engine):
    other = make_engine("other")
    engine.register_remote_engine(other.get_engine_desc())
    engine.register_remote_engine(other.get_engine_desc())
    engine.deregister_remote_engine(other.get_engine_desc())
    engine.deregister_remote_engine(other.get_engine_desc())
    engine.register_remote_engine(engine.get_engine_desc())
    assert engine.engine.peers == []


def test_log_levels():
    for level in ("trace", "debug", "info", "warn", "error", "critical", "ERROR"):
        set_log_level(level)
    with pytest.raises(ValueError):
        set_log_level("loud")
    with pytest.raises(TypeError):
        set_log_level(5)
    set_log_level("error")


def test_the_environment_wins_over_the_log_level():
    script = (
        "from mori.io import *\n"
        "set_log_level('critical')\n"
        "engine = IOEngine('logs', IOEngineConfig()); engine.create_backend(BackendType.TCP, TcpBackendConfig())\n"
    )
    for value, lines in (("info", True), ("", False)):
        environment = {**os.environ, "MORI_IO_LOG_LEVEL": value}
        ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0 and bool(ended.stderr) is lines, ended.stderr


def test_a_value_of_the_environment_that_does_not_fit_is_warned_of(engine):
    script = (
        "from mori.io import *\n"
        "engine = IOEngine('logs', IOEngineConfig()); engine.create_backend(BackendType.RDMA, RdmaBackendConfig())\n"
        "assert engine.get_engine_desc().port > 0\n"
    )
    names = ("MORI_IO_QP_PER_TRANSFER", "MORI_IO_POLL_CQ_MODE", "MORI_IO_ENABLE_CHUNKING", "MORI_IO_NUM_WORKER_THREADS")
    environment = {**os.environ, "MORI_IO_LOG_LEVEL": "warn", "MORI_IO_TCP_FALLBACK": "1", **dict.fromkeys(names, "many")}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert all(f"{name}=many" in ended.stderr for name in names), ended.stderr


def test_what_is_not_part_of_the_package_can_be_named_and_not_used():
    from typing import Optional, Union

    def annotated(op: mori.ops.EpDispatchCombineOp, config: Optional[mori.ops.Config] = None) -> mori.shmem.Handle:
        """An annotation is evaluated and not used."""

    assert Union[mori.ops.A, None] and (mori.ops.A | None) and (None | mori.ops.A)
    assert "mori.ops.a.b" in repr(mori.ops.a.b)
    for use in (
        mori.ops.EpDispatchCombineOp,
        lambda: mori.ccl[0],
        lambda: list(mori.shmem),
        lambda: isinstance(5, mori.ops.Config),
        lambda: types.new_class("Derived", (mori.ops.Config,)),
        lambda: setattr(mori.ops, "x", 1),
    ):
        with pytest.raises(NotImplementedError, match="mori.io"):
            use()
    with pytest.raises(AttributeError):
        mori.no_such_part
    assert not hasattr(mori, "__path_hooks__") and isinstance(mori.__version__, str)


def test_importing_needs_nothing():
    script = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'msgpack'): sys.modules[name] = None\n"
        "import mori, mori.io, mori.cpp, mori.engine, mori.aio\n"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
