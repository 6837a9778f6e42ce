"""A connector as serving systems have one: layers of scattered blocks, read by positional calls, waited for in a loop; and a
producer that is killed in the middle."""

import signal

import pytest

from conftest import Producer, make_engine, register
from mori.io import EngineDesc, MemoryDesc, PeerFailureReason, StatusCode

LAYERS, BLOCKS, BLOCK = 100, 200, 512
LAYER = 2 * BLOCKS * BLOCK


class Consumer:
    def __init__(self, peer):
        self.engine = make_engine("consumer")
        self.memory = bytearray(LAYERS * LAYER)
        self.engine.register_remote_engine(exchanged(peer.engine))
        self.local = register(self.engine, self.memory)
        self.session = self.engine.create_session(self.local, exchanged(peer.memory))
        assert self.session is not None

    def read_layer(self, layer):
        """Every other block of the producer's layer, in reverse."""
        local, remote = [], []
        for block in range(BLOCKS):
            local.append(layer * LAYER + block * BLOCK)
            remote.append(layer * LAYER + 2 * (BLOCKS - 1 - block) * BLOCK)
        return self.session.batch_read(local, remote, [BLOCK] * BLOCKS, self.session.allocate_transfer_uid())

    def wait(self, statuses, rounds=600):
        """The loop of the connectors: short bounds, until nothing is in progress."""
        for _ in range(rounds):
            code = self.engine.wait_all(statuses, 100)
            if code is not StatusCode.IN_PROGRESS:
                return code
        raise AssertionError("the transfers hang")

    def check_layer(self, layer):
        pattern = bytes(range(251))
        for block in range(BLOCKS):
            here = layer * LAYER + block * BLOCK
            there = layer * LAYER + 2 * (BLOCKS - 1 - block) * BLOCK
            expected = bytes(pattern[(there + i) % 251] for i in (0, 1, BLOCK - 1))
            found = bytes(self.memory[here + i] for i in (0, 1, BLOCK - 1))
            assert found == expected, (layer, block)


def exchanged(desc):
    """As it travels: packed, in a message of another protocol if that is installed."""
    try:
        import msgpack
    except ImportError:
        message = {"desc": desc.pack()}
    else:
        message = msgpack.unpackb(msgpack.packb({"desc": desc.pack()}))
    return type(desc).unpack(message["desc"])


def test_layers_of_scattered_blocks_arrive(producer):
    consumer = Consumer(producer(LAYERS * LAYER))
    statuses = [consumer.read_layer(layer) for layer in range(LAYERS)]
    assert consumer.wait(statuses) is StatusCode.SUCCESS
    for layer in range(LAYERS):
        consumer.check_layer(layer)


def test_a_killed_producer_fails_its_layers_by_name_and_nothing_hangs(producer):
    peer = producer(LAYERS * LAYER)
    consumer = Consumer(peer)
    done = [consumer.read_layer(layer) for layer in range(10)]
    assert consumer.wait(done) is StatusCode.SUCCESS
    peer.signal(signal.SIGSTOP)
    statuses = [consumer.read_layer(layer) for layer in range(10, LAYERS)]
    assert consumer.engine.wait_all(statuses, 0) is StatusCode.IN_PROGRESS
    peer.end()
    code = consumer.wait(statuses)
    assert code is StatusCode.ERR_PEER_LOST
    failed = [layer for layer, status in enumerate(statuses, 10) if status.Failed()]
    late = [layer for layer, status in enumerate(statuses, 10) if status.Succeeded()]
    assert failed and sorted(failed + late) == list(range(10, LAYERS))
    assert all(statuses[layer - 10].Message() for layer in failed)
    for layer in range(10):
        consumer.check_layer(layer)
    event = consumer.engine.pop_peer_failure()
    assert event.engine_key == "producer" and event.reason is PeerFailureReason.PEER_UNREACHABLE and event.message
    assert consumer.engine.pop_peer_failure() is None
    # The process lives, and another producer under the same name is a new one.
    again = producer(LAYERS * LAYER)
    consumer.engine.register_remote_engine(again.engine)
    session = consumer.engine.create_session(consumer.local, again.memory)
    assert session.read(0, 0, BLOCK, 1).WaitFor(20000) is StatusCode.SUCCESS
    stale = consumer.read_layer(0)
    assert consumer.wait([stale]) in (StatusCode.ERR_NOT_FOUND, StatusCode.ERR_PEER_LOST, StatusCode.ERR_BAD_STATE)


def test_a_stopped_producer_that_goes_on_loses_nothing(producer):
    peer = producer(LAYERS * LAYER)
    consumer = Consumer(peer)
    peer.signal(signal.SIGSTOP)
    statuses = [consumer.read_layer(layer) for layer in range(LAYERS)]
    assert consumer.engine.wait_all(statuses, 300) is StatusCode.IN_PROGRESS
    peer.signal(signal.SIGCONT)
    assert consumer.wait(statuses) is StatusCode.SUCCESS
    for layer in (0, LAYERS - 1):
        consumer.check_layer(layer)


def test_a_producer_that_is_stopped_for_good_is_lost_within_the_bound(producer):
    from mori.io import TcpBackendConfig

    peer = producer(1 << 20)
    engine = make_engine("bound", TcpBackendConfig(peer_timeout=0.5))
    memory = bytearray(1 << 20)
    engine.register_remote_engine(peer.engine)
    session = engine.create_session(register(engine, memory), peer.memory)
    peer.signal(signal.SIGSTOP)
    status = session.read(0, 0, 1 << 20, 1)
    assert status.WaitFor(60_000) is StatusCode.ERR_PEER_LOST, status.Message()


def test_writes_that_a_dead_initiator_leaves_are_told_to_the_target(pair):
    """The other direction: a peer process writes here with a unique id and dies."""
    import subprocess
    import sys

    script = (
        "import sys\n"
        "from mori.io import *\n"
        "engine = IOEngine('writer', IOEngineConfig()); engine.create_backend(BackendType.TCP, TcpBackendConfig())\n"
        "engine.register_remote_engine(EngineDesc.unpack(bytes.fromhex(sys.argv[1])))\n"
        "remote = MemoryDesc.unpack(bytes.fromhex(sys.argv[2]))\n"
        "memory = engine.engine.allocate(4096); memory.write_at(0, b'y' * 4096)\n"
        "status = engine.create_session(memory.desc, remote).write(0, 0, 4096, 77)\n"
        "assert status.WaitFor(20000) is StatusCode.SUCCESS, status.Message()\n"
    )
    packed = [pair.there.get_engine_desc().pack().hex(), pair.remote.pack().hex()]
    subprocess.run([sys.executable, "-c", script, *packed], check=True, timeout=120)
    told = pair.there.engine.receive(20.0)
    assert told.tag == 77 and told.peer == "writer" and pair.remote_bytes[:4096] == b"y" * 4096


@pytest.mark.parametrize("kind", [EngineDesc, MemoryDesc])
def test_descriptors_travel_in_msgpack(pair, kind):
    pytest.importorskip("msgpack", reason="msgpack is not installed")
    desc = pair.there.get_engine_desc() if kind is EngineDesc else pair.remote
    assert exchanged(desc) == desc
    assert Producer is not None
