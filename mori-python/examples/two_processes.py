"""A prefill process owns the blocks of a KV cache; a decode process reads one batch of them and compares every byte."""

import multiprocessing

from mori.engine import Engine
from mori.io import BackendType, EngineDesc, IOEngine, IOEngineConfig, MemoryDesc, StatusCode, TcpBackendConfig

BLOCK, BLOCKS = 64 << 10, 64
PATTERN = [bytes([number]) * BLOCK for number in range(BLOCKS)]


def prefill(pipe):
    with Engine("prefill") as engine:
        memory = engine.register(bytearray(b"".join(PATTERN)), access="r")
        pipe.send((engine.desc.pack(), memory.desc.pack()))
        pipe.recv()  # The engine serves reads meanwhile; this process takes no part.


def decode(pipe):
    engine = IOEngine("decode", IOEngineConfig(host="127.0.0.1", port=0))
    engine.create_backend(BackendType.TCP, TcpBackendConfig())
    peer, remote = pipe.recv()
    engine.register_remote_engine(EngineDesc.unpack(peer))
    cache = engine.engine.allocate(BLOCKS * BLOCK)
    session = engine.create_session(cache.desc, MemoryDesc.unpack(remote))
    here = [number * BLOCK for number in range(BLOCKS)]
    status = session.batch_read(here, here[::-1], [BLOCK] * BLOCKS, session.allocate_transfer_uid())
    assert engine.wait_all([status], timeout_ms=10_000) is StatusCode.SUCCESS, status.Message()
    assert [cache.read_at(offset, BLOCK) for offset in here] == PATTERN[::-1]
    print(f"{BLOCKS} blocks of {BLOCK} bytes arrived, every byte is right: {session}")
    pipe.send("done")


if __name__ == "__main__":
    pipe, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=prefill, args=(other,), daemon=True)
    process.start()
    decode(pipe)
    process.join()
