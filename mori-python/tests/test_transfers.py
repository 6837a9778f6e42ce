"""Reads and writes: by the engine, by sessions, one by one and in batches; and what is wrong with them."""

import pytest

from conftest import Pair, make_engine, register
from mori.cpp import TransferStatus
from mori.io import BackendType, IOEngine, IOEngineConfig, MemoryLocationType, StatusCode, XgmiBackendConfig

BOUND = 20000


def ended(status):
    """Its code, once it is terminal; a bound that runs out shows as IN_PROGRESS."""
    return status.WaitFor(BOUND)


def test_read_and_write_by_the_engine(pair):
    uid = pair.here.allocate_transfer_uid()
    status = pair.here.read(pair.local, 100, pair.remote, 200, 1000, uid)
    assert isinstance(status, TransferStatus) and not status.Init() and status.tag == uid
    assert ended(status) is StatusCode.SUCCESS
    assert pair.local_bytes[100:1100] == pair.remote_bytes[200:1200]
    assert status.Succeeded() and not status.Failed() and not status.InProgress() and status.Message() == ""
    pair.local_bytes[:4] = b"mine"
    assert ended(pair.here.write(pair.local, 0, pair.remote, 8, 4, pair.here.allocate_transfer_uid())) is StatusCode.SUCCESS
    assert pair.remote_bytes[8:12] == b"mine"


def test_read_and_write_by_a_session(pair):
    session = pair.session
    assert session.alive()
    assert ended(session.read(0, 512, 512, session.allocate_transfer_uid())) is StatusCode.SUCCESS
    assert pair.local_bytes[:512] == pair.remote_bytes[512:1024]
    assert ended(session.write(0, 0, 512, session.allocate_transfer_uid())) is StatusCode.SUCCESS
    assert pair.remote_bytes[:512] == pair.local_bytes[:512]


def test_batches_of_pieces_by_a_session(pair):
    local, remote, sizes = [i * 1000 for i in range(200)], [(199 - i) * 2000 for i in range(200)], [777] * 200
    assert ended(pair.session.batch_read(local, remote, sizes, pair.session.allocate_transfer_uid())) is StatusCode.SUCCESS
    for to, source in zip(local, remote):
        assert pair.local_bytes[to : to + 777] == pair.remote_bytes[source : source + 777]
    pair.remote_bytes[:] = bytes(Pair.SIZE)
    assert ended(pair.session.batch_write(local, remote, sizes, 9)) is StatusCode.SUCCESS
    assert pair.remote_bytes[398000:398777] == pair.local_bytes[:777]


def test_batches_by_the_engine_have_a_status_for_each_element(pair):
    engine = pair.here
    uids = [engine.allocate_transfer_uid() for _ in range(3)]
    statuses = engine.batch_read(
        [pair.local] * 3, [[0, 10], [100], []], [pair.remote] * 3, [[50, 60], [70], []], [[5, 5], [30], []], uids
    )
    assert [status.tag for status in statuses] == uids
    assert engine.wait_all(statuses, BOUND) is StatusCode.SUCCESS
    assert pair.local_bytes[100:130] == pair.remote_bytes[70:100]
    written = engine.batch_write([pair.local], [[0]], [pair.remote], [[0]], [[10]], [1])
    assert engine.wait_all(written, BOUND) is StatusCode.SUCCESS


def test_one_bad_element_of_a_batch_fails_alone(pair):
    statuses = pair.here.batch_read(
        [pair.local] * 3, [[0], [0], [0, 1]], [pair.remote] * 3, [[0], [Pair.SIZE], [0]], [[8], [8], [8]], [1, 2, 3]
    )
    assert pair.here.wait_all(statuses, BOUND) is StatusCode.ERR_INVALID_ARGS
    assert [status.Code().name for status in statuses] == ["SUCCESS", "ERR_INVALID_ARGS", "ERR_INVALID_ARGS"]
    assert "length" in statuses[2].Message() and statuses[1].Message()


@pytest.mark.parametrize(
    "local, remote, size",
    [(Pair.SIZE, 0, 1), (0, Pair.SIZE, 1), (1, 0, Pair.SIZE), (2**64 - 1, 0, 2), (0, 2**64 - 1, 2**64 - 1)],
)
def test_out_of_range_is_visible_on_return(pair, local, remote, size):
    for status in (
        pair.session.read(local, remote, size, 1),
        pair.session.batch_write([0, local], [0, remote], [1, size], 2),
        pair.here.write(pair.local, local, pair.remote, remote, size, 3),
    ):
        assert status.Code() is StatusCode.ERR_INVALID_ARGS and status.Failed() and status.Message()


def test_inner_lengths_that_differ_are_invalid(pair):
    assert pair.session.batch_read([0, 1], [0], [1], 1).Code() is StatusCode.ERR_INVALID_ARGS


def test_nothing_to_move_succeeds_even_without_a_way(pair):
    alone = IOEngine("alone", IOEngineConfig())
    memory = bytearray(16)
    local = register(alone, memory)
    for status in (
        pair.session.batch_read([], [], [], 1),
        pair.session.read(0, 0, 0, 2),
        pair.here.read(pair.local, 5, pair.remote, 5, 0, 3),
        alone.read(local, 0, pair.remote, 0, 0, 4),
    ):
        assert status.Code() is StatusCode.SUCCESS
    assert pair.here.batch_read([], [], [], [], [], []) == []


def test_no_backend_says_so_in_the_status_and_gives_no_session(pair):
    alone = IOEngine("alone", IOEngineConfig())
    memory = bytearray(16)
    local = register(alone, memory)
    status = alone.read(local, 0, pair.remote, 0, 8, 1)
    assert status.Code() is StatusCode.ERR_BAD_STATE and status.Message()
    alone.register_remote_engine(pair.there.get_engine_desc())
    assert "no backend" in alone.read(local, 0, pair.remote, 0, 8, 1).Message()
    assert alone.create_session(local, pair.remote) is None
    alone.create_backend(BackendType.XGMI, XgmiBackendConfig())
    status = alone.read(local, 0, pair.remote, 0, 8, 1)
    assert status.Code() is StatusCode.ERR_BAD_STATE and "xgmi" in status.Message()


def test_an_unknown_peer_says_so(pair):
    stranger = make_engine("stranger")
    memory = bytearray(16)
    status = stranger.read(register(stranger, memory), 0, pair.remote, 0, 8, 1)
    assert status.Code() is StatusCode.ERR_BAD_STATE and "there" in status.Message()


def test_deregistered_memory_is_not_found(pair):
    pair.here.deregister_memory(pair.local)
    pair.here.deregister_memory(pair.local)
    assert pair.here.read(pair.local, 0, pair.remote, 0, 8, 1).Code() is StatusCode.ERR_NOT_FOUND
    assert pair.here.create_session(pair.local, pair.remote) is None
    with pytest.raises(ValueError):
        pair.here.deregister_memory(pair.remote)


def test_stale_remote_memory_fails_clearly(pair):
    pair.there.deregister_memory(pair.remote)
    status = pair.session.read(0, 0, 8, 1)
    assert ended(status) is StatusCode.ERR_NOT_FOUND, status.Message()


def test_outer_lists_of_different_lengths_raise(pair):
    with pytest.raises(ValueError, match="length"):
        pair.here.batch_read([pair.local], [[0], [0]], [pair.remote], [[0]], [[1]], [1])
    with pytest.raises(ValueError, match="length"):
        pair.here.batch_read([pair.local], [[0]], [pair.remote], [[0]], [[1]], [])


@pytest.mark.parametrize("bad", [None, 1.0, -1, 2**64, "1", [1]])
def test_numbers_of_other_types_are_type_errors(pair, bad):
    good = 1
    for arguments in ((bad, good, good, good), (good, bad, good, good), (good, good, bad, good), (good, good, good, bad)):
        with pytest.raises(TypeError):
            pair.session.read(*arguments)
    for arguments in (([bad], [0], [1], 1), ([0], [bad], [1], 1), ([0], [0], [bad], 1), ([0], [0], [1], bad)):
        with pytest.raises(TypeError):
            pair.session.batch_write(*arguments)


@pytest.mark.parametrize("bad", [None, 5, iter([0]), {0: 1}])
def test_lists_of_other_types_are_type_errors(pair, bad):
    with pytest.raises(TypeError):
        pair.session.batch_read(bad, [0], [1], 1)
    with pytest.raises(TypeError):
        pair.here.batch_read([pair.local], bad, [pair.remote], [[0]], [[1]], [1])
    with pytest.raises(TypeError):
        pair.here.batch_read(bad, [[0]], [pair.remote], [[0]], [[1]], [1])


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_a_wrong_count_of_arguments_is_a_type_error(pair, count):
    for call in (pair.session.read, pair.session.write, pair.session.batch_read, pair.session.batch_write):
        with pytest.raises(TypeError):
            call(*[0] * count)


def test_numpy_numbers_and_arrays_are_taken(pair):
    numpy = pytest.importorskip("numpy")
    offsets = numpy.arange(0, 4096, 512, dtype=numpy.int64)
    sizes = numpy.full(8, 512, dtype=numpy.uint32)
    assert ended(pair.session.batch_read(offsets, offsets[::-1], sizes, numpy.uint64(7))) is StatusCode.SUCCESS
    assert pair.local_bytes[:512] == pair.remote_bytes[3584:4096]
    assert ended(pair.session.read(numpy.int32(0), numpy.int64(8), numpy.uint16(16), numpy.int8(1))) is StatusCode.SUCCESS
    for kind in ("u8", "i8", ">i8", "u4", "i2"):
        there = numpy.arange(4096, 0, -512).astype(kind)[::2]
        assert ended(pair.session.batch_read(there, there, numpy.full(4, 16, kind), 3)) is StatusCode.SUCCESS
        assert pair.local_bytes[4096:4112] == pair.remote_bytes[4096:4112]
        pair.local_bytes[:] = bytes(Pair.SIZE)
    top = numpy.array([2**64 - 1], dtype=numpy.uint64)
    assert pair.session.batch_read(top, [0], [1], 1).Code() is StatusCode.ERR_INVALID_ARGS
    listed = [numpy.int64(0), 8]
    assert ended(pair.session.batch_read(listed, tuple(listed), range(8, 10), 1)) is StatusCode.SUCCESS
    for bad in (numpy.array([-1]), numpy.array([0.0]), numpy.array([[0]]), numpy.array("x")):
        with pytest.raises(TypeError):
            pair.session.batch_read(bad, [0], [1], 1)
    with pytest.raises(TypeError):
        pair.session.read(numpy.float64(1), 0, 1, 1)


def test_registering_refuses_what_is_no_memory(pair):
    cpu = MemoryLocationType.CPU
    with pytest.raises(ValueError, match="null"):
        pair.here.register_memory(0, 10, -1, cpu)
    with pytest.raises(ValueError):
        pair.here.register_memory(4096, 0, -1, cpu)
    with pytest.raises(ValueError):
        pair.here.register_memory(2**64 - 10, 100, -1, cpu)
    with pytest.raises(ValueError):
        pair.here.register_memory(4096, 10, -1, MemoryLocationType.Unknown)
    for arguments in ((None, 1, 0, cpu), (1, 1.5, 0, cpu), (1, 1, 0, 1), (1, -1, 0, cpu), (1, 1, "0", cpu), (1, 1, 0)):
        with pytest.raises(TypeError):
            pair.here.register_memory(*arguments)


def test_device_memory_registers_and_says_that_nothing_carries_it(pair):
    desc = pair.here.register_memory(4096, 10, 3, MemoryLocationType.GPU)
    assert desc.loc is MemoryLocationType.GPU and desc.device_id == 3
    status = pair.here.read(desc, 0, pair.remote, 0, 8, 1)
    assert status.Code() is StatusCode.ERR_BAD_STATE and "tcp" in status.Message()
    pair.here.deregister_memory(desc)


def test_targets_learn_of_unique_ids_once(pair):
    uid = pair.session.allocate_transfer_uid()
    assert pair.there.pop_inbound_transfer_status("here", uid) is None
    assert ended(pair.session.write(0, 0, 8, uid)) is StatusCode.SUCCESS
    told = pair.there.engine.receive(10.0)
    assert told.peer == "here" and told.tag == uid and told.error is None and told.message == b""
    second = pair.session.allocate_transfer_uid()
    assert ended(pair.session.write(0, 0, 8, second)) is StatusCode.SUCCESS
    status = popped(pair.there, second)
    assert status.Succeeded() and status.tag == second
    assert pair.there.pop_inbound_transfer_status("here", second) is None
    assert pair.there.pop_inbound_transfer_status("nobody", 0) is None


def popped(engine, uid):
    """The inbound status, which may arrive a moment after the other side's success."""
    import threading

    pause = threading.Event()
    for _ in range(2000):
        status = engine.pop_inbound_transfer_status("here", uid)
        if status is not None:
            return status
        pause.wait(0.005)
    raise AssertionError("the target was not told")


def test_without_notifications_targets_are_not_told():
    from mori.io import TcpBackendConfig

    here, there = make_engine("here", TcpBackendConfig(enable_notification=False)), make_engine("there")
    here.register_remote_engine(there.get_engine_desc())
    mine, theirs = bytearray(64), bytearray(64)
    session = here.create_session(register(here, mine), register(there, theirs))
    assert ended(session.write(0, 0, 8, 1)) is StatusCode.SUCCESS
    assert there.engine.receive(0.05) is None


def test_explicit_statuses_as_in_cpp(pair):
    status = TransferStatus()
    assert pair.session.Read(0, 0, 64, status, pair.session.AllocateTransferUniqueId()) is None
    assert not status.Init() and ended(status) is StatusCode.SUCCESS
    with pytest.raises(RuntimeError, match="used"):
        pair.session.Read(0, 0, 64, status, 2)
    engine = pair.here
    single, several = TransferStatus(), [TransferStatus(), TransferStatus()]
    engine.Write(pair.local, 0, pair.remote, 0, 8, single, engine.AllocateTransferUniqueId())
    engine.BatchRead([pair.local] * 2, [[0], [9]], [pair.remote] * 2, [[0], [9]], [[1], [1]], several, [1, 2])
    assert engine.WaitAll([single, *several], BOUND) is StatusCode.SUCCESS
    piece, batch = TransferStatus(), TransferStatus()
    pair.session.Write(0, 0, Pair.SIZE + 1, piece, 1)
    pair.session.BatchWrite([0], [0], [8], batch, 2)
    assert piece.Code() is StatusCode.ERR_INVALID_ARGS and ended(batch) is StatusCode.SUCCESS
    with pytest.raises(RuntimeError):
        engine.BatchWrite([pair.local] * 2, [[0]] * 2, [pair.remote] * 2, [[0]] * 2, [[1]] * 2, [TransferStatus(), single], [1, 2])
    assert engine.GetEngineDesc() == engine.get_engine_desc() and engine.CreateSession(pair.local, pair.remote).Alive()
    assert engine.PopInboundTransferStatus("there", 1) is None and engine.PopPeerFailure() is None


def test_a_status_that_is_refused_stays_its_owners(pair):
    status = TransferStatus()
    status.SetCode(StatusCode.IN_PROGRESS)
    with pytest.raises(RuntimeError, match="used"):
        pair.session.Read(0, 0, 64, status, 1)
    fresh = TransferStatus()
    with pytest.raises(RuntimeError, match="used"):
        pair.here.BatchRead([pair.local] * 2, [[0]] * 2, [pair.remote] * 2, [[0]] * 2, [[1]] * 2, [fresh, status], [1, 2])
    assert fresh.Init() and fresh.SetCode(StatusCode.SUCCESS) and status.SetCode(StatusCode.SUCCESS)


def test_a_transfer_that_is_over_keeps_its_state(pair):
    status = pair.session.read(0, 0, 8, 1)
    assert ended(status) is StatusCode.SUCCESS
    assert not status.Update(StatusCode.ERR_GPU_OP, "no") and not status.SetMessage("no")
    assert status.Succeeded() and status.Message() == ""


def test_offsets_beyond_four_gib(pair):
    import mmap

    size = (4 << 30) + (1 << 20)
    try:
        # Reserved and never touched as a whole: only what moves takes memory.
        reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
        source = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve)
    except OSError as error:
        pytest.skip(f"this machine reserves no 4 GiB: {error}")
    with make_engine("large").engine as engine:
        memory = engine.register(source)
        assert memory.size == size
        engine.add_peer(pair.there.get_engine_desc())
        status = engine.read(memory, pair.remote, size - 8, 0, 8)
        assert status.wait(20.0) is StatusCode.SUCCESS and source[-8:] == pair.remote_bytes[:8]
        status = engine.read(memory, memory.desc, 0, 0, size + 1)
        assert status.code is StatusCode.ERR_INVALID_ARGS
