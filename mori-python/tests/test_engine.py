"""The package's own API: engines, memory by its owner, sessions, notifications, explanations."""

import gc
import mmap
import signal
import weakref

import pytest

from conftest import make_engine
from mori import MoriError
from mori.engine import BackendType, Engine, StatusCode, TcpBackendConfig, wait_all
from mori.io import EngineDesc, MemoryDesc


@pytest.fixture
def engines():
    with Engine("here") as here, Engine("there") as there:
        here.add_peer(there.desc)
        there.add_peer(here.desc.pack())
        yield here, there


def test_an_engine_says_what_it_is(engines):
    here, there = engines
    assert here.key == "here" and here.peers == ["there"] and here.backends[0].startswith("tcp at 127.0.0.1")
    assert "tcp" in repr(here) and here.desc.port > 0
    here.remove_peer("there")
    assert here.peers == []
    with pytest.raises(MoriError) as caught:
        here.remove_peer("there")
    assert caught.value.kind == "not found" and caught.value.code is StatusCode.ERR_NOT_FOUND and caught.value.cause is None


def test_an_engine_without_transport_gets_one_later():
    engine = Engine("later", tcp=False)
    assert engine.backends == [] and engine.desc.port == 0
    engine.add_backend(BackendType.TCP, TcpBackendConfig(connections=1))
    assert engine.desc.port > 0
    with pytest.raises(MoriError) as caught:
        engine.add_backend(BackendType.TCP)
    assert caught.value.code is StatusCode.ERR_ALREADY_EXISTS
    for bad in ({"port": 70000}, {"default_deadline": -1.0}):
        with pytest.raises(ValueError):
            Engine("bad", **bad)
    for bad in ({"tcp": 5}, {"host": None}, {"port": "x"}):
        with pytest.raises(TypeError):
            Engine("bad", **bad)
    with pytest.raises(ValueError):
        Engine("")


def test_reads_and_writes_one_piece_or_many(engines):
    here, there = engines
    source = bytearray(range(256)) * 16
    target = bytearray(4096)
    remote, memory = there.register(source), here.register(target)
    session = here.session(memory, remote.desc)
    assert session.alive and session.backend == "tcp"
    transfers = [
        session.read(0, 256, 100, tag=3),
        session.read([1000, 2000], [0, 1], [10, 20]),
        session.read([3000, 3100], [5, 6], 7),
        here.read(memory, remote.desc, 3500, 0, 16),
    ]
    assert wait_all(transfers, timeout=60.0)
    assert transfers[0].tag == 3 and transfers[0].done and transfers[0].error is None
    assert target[:100] == source[256:356] and target[2000:2020] == source[1:21] and target[3100:3107] == source[6:13]
    assert target[3500:3516] == source[:16]
    target[:4] = b"back"
    assert wait_all([session.write(0, 0, 4), here.write(memory, remote.desc, 0, 4, 4)], timeout=60.0)
    assert source[:8] == b"backback" and remote.read_at(0, 8) == b"backback"
    bad = session.read([0], [0, 1], 5)
    assert bad.error.code is StatusCode.ERR_INVALID_ARGS and bad.Failed()


def test_memory_is_copied_in_and_out(engines):
    memory = engines[0].allocate(64)
    memory.write_at(10, b"bytes")
    assert memory.read_at(10, 5) == b"bytes" and len(memory) == memory.size == 64 and memory.address > 0
    for call in (lambda: memory.read_at(60, 5), lambda: memory.write_at(60, b"12345"), lambda: memory.read_at(0, 2**63)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(ValueError):
        engines[0].allocate(0)
    with pytest.raises(RuntimeError):
        engines[0].allocate(2**63)


def test_the_owner_of_the_bytes_lives_as_long_as_they_are_registered(engines):
    class Buffer(bytearray):
        """A bytearray that can be watched."""

    buffer = Buffer(4096)
    watch = weakref.ref(buffer)
    memory = engines[0].register(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del buffer
    gc.collect()
    assert watch() is not None
    memory.deregister()
    del memory
    gc.collect()
    assert watch() is None


def test_the_owner_of_the_bytes_lives_as_long_as_a_transfer_uses_them(producer):
    class Buffer(bytearray):
        """A bytearray that can be watched."""

    peer = producer(1 << 20)
    engine = Engine("flight")
    engine.add_peer(peer.engine)
    buffer = Buffer(1 << 20)
    watch = weakref.ref(buffer)
    memory = engine.register(buffer)
    session = engine.session(memory, peer.memory)
    peer.signal(signal.SIGSTOP)
    transfer = session.read(0, 0, 1 << 20)
    del buffer, memory, session
    gc.collect()
    assert transfer.InProgress() and watch() is not None
    peer.signal(signal.SIGCONT)
    assert transfer.wait(60.0) is StatusCode.SUCCESS
    engine.shutdown()
    del engine
    gc.collect()
    assert watch() is None


def test_buffers_of_many_kinds(engines):
    import array

    here, _ = engines
    for buffer in (bytearray(64), memoryview(bytearray(64)), mmap.mmap(-1, 64), array.array("d", [0.0] * 8)):
        memory = here.register(buffer)
        memory.write_at(0, b"\x01" * 64)
        assert bytes(memoryview(buffer)) == b"\x01" * 64
        memory.deregister()
    with pytest.raises(ValueError, match="read-only"):
        here.register(b"bytes")
    with pytest.raises(ValueError, match="contiguous"):
        here.register(memoryview(bytearray(64))[::2])
    with pytest.raises(ValueError, match="empty"):
        here.register(bytearray())
    for bad in (None, 5, "text", [1]):
        with pytest.raises(TypeError):
            here.register(bad)
    with pytest.raises(ValueError, match="access"):
        here.register(bytearray(1), access="x")


def test_numpy_arrays_are_registered_in_place(engines):
    numpy = pytest.importorskip("numpy")
    here, there = engines
    source = numpy.arange(1000, dtype=numpy.float64)
    target = numpy.zeros_like(source)
    transfer = here.read(here.register(target), there.register(source).desc, 0, 0, source.nbytes)
    assert transfer.wait(60.0) is StatusCode.SUCCESS and (target == source).all()
    with pytest.raises(ValueError, match="contiguous"):
        here.register(numpy.zeros((10, 10))[:, ::2])
    source.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        here.register(source)


class Device:
    def __init__(self, kind, index):
        self.type, self.index = kind, index


class Tensor:
    """What the package asks of a tensor, over a bytearray."""

    def __init__(self, size=64, kind="cpu", index=None, contiguous=True):
        import ctypes

        self.bytes = bytearray(size)
        self.keep = (ctypes.c_char * size).from_buffer(self.bytes) if size else None
        self.device, self.contiguous = Device(kind, index), contiguous

    def is_contiguous(self):
        return self.contiguous

    def data_ptr(self):
        import ctypes

        return ctypes.addressof(self.keep) if self.keep is not None else 0

    def nelement(self):
        return len(self.bytes) // 4

    def element_size(self):
        return 4


def test_tensors_by_their_data_ptr():
    engine = make_engine("tensors")
    tensor = Tensor()
    watch = weakref.ref(tensor)
    desc = engine.register_torch_tensor(tensor)
    assert desc.size == 64 and desc.data == tensor.data_ptr() and desc.device_id == -1
    del tensor
    gc.collect()
    assert watch() is not None
    engine.deregister_memory(desc)
    gc.collect()
    assert watch() is None
    gpu = engine.register_torch_tensor(Tensor(kind="cuda", index=2))
    assert gpu.loc.name == "GPU" and gpu.device_id == 2
    with pytest.raises(RuntimeError, match="must be contiguous"):
        engine.register_torch_tensor(Tensor(contiguous=False))
    with pytest.raises(KeyError):
        engine.register_torch_tensor(Tensor(kind="tpu"))
    with pytest.raises(ValueError, match="null"):
        engine.register_torch_tensor(Tensor(0))
    with pytest.raises(AttributeError):
        engine.register_torch_tensor(None)
    assert engine.engine.register(Tensor()).size == 64


def test_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    engine = make_engine("torch")
    source, target = torch.arange(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
    local, remote = engine.register_torch_tensor(target), engine.register_torch_tensor(source)
    assert engine.read(local, 0, remote, 0, 1024, 1).WaitFor(20000) is StatusCode.SUCCESS
    assert torch.equal(source, target)
    with pytest.raises(RuntimeError, match="must be contiguous"):
        engine.register_torch_tensor(source[::2])


def test_access_is_kept(engines):
    here, there = engines
    memory = here.allocate(64)
    for access, read, write in (("r", True, False), ("w", False, True), ("", False, False), ("rw", True, True)):
        remote = there.allocate(64, access=access).desc
        for allowed, transfer in ((read, here.read), (write, here.write)):
            code = transfer(memory, remote, 0, 0, 8).wait(60.0)
            assert code is (StatusCode.SUCCESS if allowed else StatusCode.ERR_ACCESS_DENIED)


def test_messages_arrive_once_in_order_and_within_a_bound(engines):
    here, there = engines
    memory, remote = here.allocate(64), there.allocate(64)
    session = here.session(memory, remote.desc)
    assert there.poll_notification() is None and there.receive(0) is None and there.receive(0.01) is None
    for number in range(10):
        assert session.write(0, 0, 8, tag=number, notify=b"%d" % number).wait(60.0) is StatusCode.SUCCESS
    told = [there.receive(60.0) for _ in range(10)]
    assert [(each.tag, each.message, each.peer) for each in told] == [(n, b"%d" % n, "here") for n in range(10)]
    assert there.poll_notification() is None
    too_long = session.write(0, 0, 8, notify=bytes(2000))
    assert too_long.code is StatusCode.ERR_INVALID_ARGS
    with pytest.raises(TypeError):
        session.write(0, 0, 8, notify="text")


def test_more_messages_than_an_engine_keeps_make_no_transfer_fail(pair):
    statuses = [pair.session.write(0, 0, 1, uid) for uid in range(6000)]
    assert pair.here.wait_all(statuses, 60_000) is StatusCode.SUCCESS


def test_deadlines_and_cancelling(producer):
    peer = producer(1 << 20)
    engine = Engine("impatient")
    engine.add_peer(peer.engine)
    session = engine.session(engine.allocate(1 << 20), peer.memory)
    peer.signal(signal.SIGSTOP)
    late = session.read(0, 0, 1 << 20, deadline=0.05)
    assert late.wait(60.0) is StatusCode.ERR_CANCELLED and late.Message()
    stopped = session.read(0, 0, 1 << 20)
    stopped.cancel()
    assert stopped.wait(60.0) is StatusCode.ERR_CANCELLED
    stopped.cancel()
    peer.signal(signal.SIGCONT)
    assert session.read(0, 0, 1 << 20).wait(60.0) is StatusCode.SUCCESS


def test_routes_are_explained(engines):
    here, there = engines
    memory, remote = here.allocate(64), there.allocate(64)
    report = here.explain(memory, remote.desc)
    assert report and report.chosen == "tcp" and report.considered == [("tcp", None)] and report.obstacle is None
    assert "over tcp" in str(report)
    here.remove_peer("there")
    report = here.explain(memory.desc, remote.desc)
    assert not report and "there" in report.obstacle
    with pytest.raises(MoriError, match="there"):
        here.session(memory, remote.desc)
    with pytest.raises(TypeError):
        here.explain(None, remote.desc)


def test_shutting_down_twice_is_fine_and_later_calls_say_so():
    engine = Engine("closed")
    memory = engine.allocate(64)
    engine.shutdown()
    engine.shutdown()
    for call in (lambda: engine.allocate(1), lambda: engine.receive(1.0), lambda: engine.add_backend(BackendType.TCP)):
        with pytest.raises(MoriError) as caught:
            call()
        assert caught.value.code is StatusCode.ERR_BAD_STATE
    assert engine.read(memory, memory.desc, 0, 0, 8).Failed()
    del engine
    with pytest.raises(MoriError):
        memory.deregister()


def test_another_engine_under_an_engines_own_key_is_refused(engines):
    other = make_engine("here")
    with pytest.raises(MoriError):
        engines[0].add_peer(other.get_engine_desc())
    with pytest.raises(TypeError):
        engines[0].add_peer(None)
    with pytest.raises(RuntimeError):
        engines[0].add_peer(b"garbage")
    assert isinstance(engines[0].desc, EngineDesc) and isinstance(engines[0].allocate(1).desc, MemoryDesc)
