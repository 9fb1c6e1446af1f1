"""Registered memory that is lent and given back."""

import threading

import calls
import mooncake
import mooncake.buffer_pool
import mooncake.store
import pytest
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator

MIB = 1 << 20


@pytest.fixture
def store(player: calls.Player) -> MooncakeDistributedStore:
    """A store that is set up, with a local buffer of 16 MiB."""
    return player.store


def test_leases_are_registered_memory(store: MooncakeDistributedStore) -> None:
    assert mooncake.BufferPool is BufferPool is mooncake.buffer_pool.RegisteredBufferPool
    pool = BufferPool(store, alignment=4096)
    with pool.acquire(1000) as lease:
        assert (lease.size, len(lease.buffer), lease.ptr % 4096) == (1000, 1000, 0)
        lease.buffer[:3] = b"abc"
        assert store.put_from("leased", lease.ptr, 3) == 0 and store.get("leased") == b"abc"
        assert store.register_buffer(lease.ptr, 1) == -600
        first = lease.ptr
    lease.release()
    for wrong in (lambda: lease.ptr, lambda: lease.buffer):
        with pytest.raises(RuntimeError, match="closed"):
            wrong()
    again = pool.buffer(2000)
    assert again.ptr == first
    again.release()
    pool.close()
    assert store.register_buffer(first, 1) == 0 == store.unregister_buffer(first)
    pool.close()
    with pytest.raises(RuntimeError, match="pool is closed"):
        pool.acquire(1)


def test_memory_that_is_looked_at_stays(store: MooncakeDistributedStore) -> None:
    pool = BufferPool(store, alignment=64)
    lease = pool.acquire(100)
    part = lease.buffer[10:20]
    with pytest.raises(RuntimeError, match="exported views"):
        lease.release()
    part[:] = bytes(10)
    part.release()
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    lease.release()
    pool.close()


def test_there_is_as_much_as_was_said(store: MooncakeDistributedStore) -> None:
    pool = BufferPool(store, max_bytes=4 * MIB, min_size_class=MIB, alignment=64)
    held = [pool.acquire(MIB, block=False) for _ in range(4)]
    assert len({lease.ptr for lease in held}) == 4
    for given in ({"block": False}, {"timeout": 0.01}):
        with pytest.raises(RuntimeError, match="exhausted"):
            pool.acquire(1, **given)
    with pytest.raises(RuntimeError, match="capacity"):
        pool.acquire(4 * MIB + 1)
    threading.Timer(0.05, held[0].release).start()
    held[0] = pool.acquire(1)
    for lease in held:
        lease.release()
    # Four free regions make room for a longer one.
    whole = pool.acquire(3 * MIB + 1, block=False)
    assert whole.size == 3 * MIB + 1
    whole.release()
    pool.close()
    few = BufferPool(store, max_regions=1, alignment=64, prewarm_size=10, prewarm_count=3)
    only = few.acquire(10)
    with pytest.raises(RuntimeError, match="exhausted"):
        few.acquire(10, block=False)
    only.release()
    few.close()
    warm = BufferPool(store, alignment=64)
    assert (warm.prewarm(10, 3), len(warm._free[65536]), warm._bytes) == (None, 3, 3 * 65536)
    warm.close()
    short = BufferPool(store, max_size_class=MIB, alignment=64)
    with short.acquire(2 * MIB) as lease:
        address = lease.ptr
    assert store.unregister_buffer(address) == -600
    short.close()


def test_pools_that_cannot_be_are_refused(store: MooncakeDistributedStore) -> None:
    for alignment in (0, 3, 4):
        with pytest.raises(RuntimeError, match="alignment must be a power of two"):
            BufferPool(store, alignment=alignment)
    for no_store in (5, MooncakeDistributedStore()):
        with pytest.raises(RuntimeError, match="store: "):
            BufferPool(no_store)
    with pytest.raises(TypeError):
        BufferPool(store).acquire(-1)


def test_pages_of_the_host() -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(5000)
    assert address and allocator.free(address + 1) == -1
    assert allocator.free(address) == 0 and allocator.free(address) == -1
    assert allocator.alloc(0) == 0 == allocator.alloc(-1) == allocator.alloc(1 << 62) == allocator.alloc(1 << 80)
