"""Registered memory that is lent and given back."""

import gc
import subprocess
import sys
import threading
from typing import Any

import calls
import mooncake
import mooncake.buffer_pool
import mooncake.store
import pytest
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator
from slackwater.compat.mooncake.tensor_format import HEADER_BYTES
from test_tensors import matrix, torch

from conftest import in_child

__all__ = ["torch"]

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
        assert isinstance(lease, mooncake.store.RegisteredBufferLeaseView)
    with pytest.raises(TypeError, match="BufferLeaseView"):
        mooncake.store.BufferLeaseView()
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


def test_leases_that_are_dropped_are_given_back(store: MooncakeDistributedStore) -> None:
    """Their memory was lost to the pool, which could not be closed any more."""
    pool = BufferPool(store, max_bytes=MIB, min_size_class=MIB, alignment=64)
    first = pool.acquire(10).ptr
    lease = pool.acquire(10, block=False)
    assert lease.ptr == first
    # Another thread waits for it.
    waited: list[int] = []
    thread = threading.Thread(target=lambda: waited.append(pool.acquire(10).ptr), daemon=True)
    thread.start()
    while not pool._changed._waiters:
        pass
    del lease
    thread.join(30)
    assert waited == [first]
    # What is looked at stays until it is not.
    view = pool.acquire(10).buffer
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(10, block=False)
    view[:] = bytes(10)
    view.release()
    pool.acquire(10, block=False).release()
    lease = pool.acquire(10)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    view = lease.buffer
    del lease
    pool.close()
    assert store.register_buffer(first, 10) == 0 == store.unregister_buffer(first)
    view[:] = b"0123456789"
    assert bytes(view) == b"0123456789"


def test_leases_are_dropped_by_a_thread_that_changes_the_pool(store: MooncakeDistributedStore) -> None:
    pool = BufferPool(store, max_bytes=2 * MIB, min_size_class=MIB, alignment=64)
    lease = pool.acquire(1)
    with pool._changed:
        free, leased = dict(pool._free), set(pool._leased)
        del lease
        assert (pool._free, pool._leased) == (free, leased) and len(pool._dropped) == 1
    pool.acquire(MIB + 1, block=False).release()
    pool.close()


def test_pools_that_are_dropped_give_their_memory_back(store: MooncakeDistributedStore) -> None:
    """It was still registered when it was no memory any more."""
    pool = BufferPool(store, alignment=64)
    lease, seen = pool.acquire(10), pool.acquire(10)
    first, second, view = lease.ptr, seen.ptr, seen.buffer
    assert store.register_buffer(first, 1) == -600 == store.register_buffer(second, 1)
    lease.release()
    del lease, seen, pool
    gc.collect()
    for address in (first, second):
        assert store.register_buffer(address, 1) == 0 == store.unregister_buffer(address)
    assert bytes(view) == bytes(10)


def test_a_fork_leaves_the_pool_of_its_parent_alone(store: MooncakeDistributedStore) -> None:
    """It waited for ever for a lock that a thread of the parent had at the fork."""
    pool = BufferPool(store, alignment=64)
    leases = [pool.acquire(10), pool.acquire(10)]

    def right() -> bool:
        leases[0].release()
        leases.clear()
        pool.close()
        with pytest.raises(RuntimeError, match="parent"):
            pool.acquire(10)
        return not pool._dropped

    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._changed:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_child(right)
    over.set()
    thread.join()
    for lease in leases:
        lease.release()
    pool.close()


AT_EXIT = """
import sys, threading
import slackwater.compat
slackwater.compat.install(over=True)
from mooncake.store import BufferPool, MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("localhost", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", sys.argv[1]) == 0
pool = BufferPool(store, alignment=64)
lease = pool.acquire(10)
view = pool.acquire(10).buffer
held = threading.Event()
# A thread that is left keeps its globals: not those with the lease.
own = {"pool": pool, "held": held, "threading": threading}
exec("def hold():\\n    with pool._changed:\\n        held.set()\\n        threading.Event().wait()", own)
threading.Thread(target=own["hold"], daemon=True).start()
held.wait()
"""


def test_a_program_ends_with_leases(master: str) -> None:
    """Also when a thread that no longer runs has the lock of the pool."""
    ran = subprocess.run([sys.executable, "-c", AT_EXIT, master], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


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
    gc.collect()
    assert allocator.alloc(0) == 0 == allocator.alloc(-1) == allocator.alloc(1 << 62) == allocator.alloc(1 << 80)


def test_a_tensor_keeps_the_memory_that_it_is_over(torch: Any, player: calls.Player) -> None:
    """A tensor over a lease had other values once the lease was given back, and ended the process after the pool was closed."""
    store, wanted = player.store, matrix().tolist()
    assert store.put_tensor("k", torch.from_numpy(matrix())) == 0
    pool = BufferPool(store, max_bytes=MIB, min_size_class=MIB, alignment=64)
    with pool.acquire(400) as lease:
        tensor = store.get_tensor_into("k", lease.ptr, 400)
        whole = store.get_tensor_with_parallelism_into("k", lease.ptr, 400)
        assert whole.data_ptr() == tensor.data_ptr() == lease.ptr + HEADER_BYTES
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(400, block=False)
    part = tensor.reshape((24,))
    del tensor, whole, lease
    gc.collect()
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(400, block=False)
    held = [part]
    del part
    waiting = threading.Thread(target=lambda: held.append(pool.acquire(400)), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    # The end of the last tensor is told to those who wait.
    held.pop(0)
    waiting.join(60)
    assert not waiting.is_alive()
    with held.pop() as lease:
        lease.buffer[:] = bytes(400)
        tensor = store.get_tensor_into("k", lease.ptr, 400)
    first = tensor.data_ptr() - HEADER_BYTES
    pool.close()
    assert store.register_buffer(first, 1) == 0 == store.unregister_buffer(first)
    del pool, lease
    gc.collect()
    assert tensor.numpy().tolist() == wanted
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(4096)
    tensor = store.get_tensor_into("k", address, 4096)
    assert allocator.free(address) == 0 and allocator.free(address) == -1
    assert tensor.numpy().tolist() == wanted and tensor.data_ptr() == address + HEADER_BYTES
