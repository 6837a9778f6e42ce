"""Descriptors: attributes, equality, packing."""

import os
import pickle
import socket

import pytest

from conftest import Pair, make_engine, register
from mori.io import EngineDesc, MemoryDesc, MemoryLocationType


def test_an_engine_descriptor_says_who_and_where():
    engine = make_engine("who")
    desc = engine.get_engine_desc()
    assert desc.key == "who" and desc.pid == os.getpid() and desc.host == "127.0.0.1" and desc.port > 0
    assert desc.hostname == socket.gethostname() and desc.node_id
    assert desc.transports == ["tcp"] and "tcp" in repr(desc)


def test_the_node_id_can_be_set(monkeypatch):
    monkeypatch.setenv("MORI_NODE_ID", "rack-7")
    assert make_engine("node").get_engine_desc().node_id == "rack-7"


def test_descriptors_come_back_from_their_bytes(pair):
    engine, memory = pair.there.get_engine_desc(), pair.remote
    for desc in (engine, memory):
        packed = desc.pack()
        assert isinstance(packed, bytes)
        received = type(desc).unpack(packed)
        assert received == desc and hash(received) == hash(desc) and received.pack() == packed
        assert pickle.loads(pickle.dumps(desc)) == desc
    assert engine != memory and engine != "there"
    assert EngineDesc.unpack(engine.pack()) != pair.here.get_engine_desc()


def test_a_memory_descriptor_says_what_and_where(pair):
    desc = pair.local
    assert desc.engine_key == "here" and desc.size == Pair.SIZE and desc.loc is MemoryLocationType.CPU
    assert desc.device_id == -1 and desc.device_bus_id == "" and desc.numa_node == -1
    assert desc.ipc_handle == bytes(64) and desc.id > 0 and desc.data > 0
    for name in ("size", "id", "engine_key"):
        with pytest.raises(AttributeError):
            setattr(desc, name, 1)


@pytest.mark.parametrize("kind", [EngineDesc, MemoryDesc])
def test_there_is_no_constructor(kind):
    with pytest.raises(TypeError):
        kind()


@pytest.mark.parametrize("kind", [EngineDesc, MemoryDesc])
@pytest.mark.parametrize("data", [b"", b"garbage", b"\x90", b"\xff" * 100, bytes(1000)])
def test_bytes_that_are_no_descriptor_are_a_runtime_error(kind, data):
    with pytest.raises(RuntimeError):
        kind.unpack(data)


@pytest.mark.parametrize("kind", [EngineDesc, MemoryDesc])
@pytest.mark.parametrize("data", [None, "text", 5, bytearray(b"x"), []])
def test_what_is_no_bytes_is_a_type_error(kind, data):
    with pytest.raises(TypeError):
        kind.unpack(data)


def test_every_cut_and_extension_of_a_descriptor_is_refused(pair):
    for desc in (pair.there.get_engine_desc(), pair.remote):
        packed = desc.pack()
        for length in range(len(packed)):
            with pytest.raises(RuntimeError):
                type(desc).unpack(packed[:length])
        with pytest.raises(RuntimeError):
            type(desc).unpack(packed + b"\x00")


def test_an_unpacked_descriptor_is_as_good_as_the_original_also_as_the_local_one(pair):
    local, remote = MemoryDesc.unpack(pair.local.pack()), MemoryDesc.unpack(pair.remote.pack())
    status = pair.here.read(local, 0, remote, 0, 4096, pair.here.allocate_transfer_uid())
    assert status.WaitFor(10000).name == "SUCCESS", status.Message()
    assert pair.here.create_session(local, remote) is not None
    pair.here.deregister_memory(local)


def test_a_descriptor_taken_before_the_backend_grows_with_it():
    from mori.io import BackendType, IOEngine, IOEngineConfig

    engine = IOEngine("early", IOEngineConfig())
    memory = bytearray(64)
    desc = register(engine, memory)
    assert desc.transports == []
    engine.create_backend(BackendType.TCP)
    assert MemoryDesc.unpack(desc.pack()).transports == ["tcp"]
    assert desc == MemoryDesc.unpack(desc.pack())
