"""Values go in and come out as they are, one at a time and in batches."""

import array

import numpy
import pytest
import slackwater
from slackwater import Chain, Store


def test_a_value_comes_back_as_it_was(store: Store) -> None:
    assert store.put("k", b"value") is True
    assert store.get("k") == b"value"
    assert store.get(b"k") == b"value"
    assert store.exists("k") and "k" in store
    assert store.get("other") is None
    assert not store.exists("other")


def test_the_first_value_stays_unless_replaced(store: Store) -> None:
    store.put("k", b"old")
    assert store.put("k", b"newer") is False
    assert store.get("k") == b"old"
    assert store.put("k", b"newer", upsert=True) is True
    assert store.get("k") == b"newer"


@pytest.mark.parametrize(
    "value",
    [
        bytearray(b"0123456789abcdef"),
        memoryview(b"0123456789abcdef"),
        array.array("d", [1.5, -2.5]),
        numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
        numpy.array(7, dtype=numpy.int64),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_with_the_buffer_protocol_is_a_value(store: Store, value: object) -> None:
    store.put("k", value)
    assert store.get("k") == memoryview(value).tobytes()


def test_real_tensors_of_torch_are_read_and_written_in_place(store: Store) -> None:
    # A class of the test's own stood here for PyTorch: what PyTorch itself hands over was never seen.
    why = "PyTorch is not installed: `pip install torch` into .venv runs this"
    torch = pytest.importorskip("torch", reason=why, exc_type=ImportError)
    for kind in (torch.float32, torch.bfloat16, torch.uint8):
        source = torch.arange(1024).to(kind)
        target = torch.zeros_like(source)
        store.put("k", source, upsert=True)
        assert store.get_into("k", target) == source.numel() * source.element_size()
        assert torch.equal(source, target)
    view = torch.arange(64)[16:32]
    store.put("view", view)
    assert store.get("view") == view.numpy().tobytes()
    learning = torch.ones(4, requires_grad=True)
    store.put("learning", learning)
    assert store.get("learning") == learning.detach().numpy().tobytes()
    with pytest.raises(ValueError, match="on meta"):
        store.put("other", torch.empty(4, device="meta"))
    with pytest.raises(ValueError, match="not contiguous"):
        store.put("other", torch.arange(8)[::2])
    with pytest.raises(ValueError, match="not a plain tensor"):
        store.put("other", torch.arange(8.0).to_sparse())


class Tensor:
    """Any library's tensor on the CPU by the methods that the store asks for, over memory of numpy and without the
    buffer protocol."""

    def __init__(self, memory: numpy.ndarray, device: str = "cpu") -> None:
        self._memory = memory
        self.device = type("device", (), {"type": device})()

    def data_ptr(self) -> int:
        return self._memory.ctypes.data

    def numel(self) -> int:
        return self._memory.size

    def element_size(self) -> int:
        return self._memory.itemsize

    def is_contiguous(self) -> bool:
        return self._memory.flags.c_contiguous


def test_an_object_with_the_methods_of_a_tensor_is_read_and_written_in_place(store: Store) -> None:
    source = numpy.arange(1024, dtype=numpy.float16)
    target = numpy.zeros_like(source)
    store.put("k", Tensor(source))
    assert store.get_into("k", Tensor(target)) == source.nbytes
    assert (target == source).all()
    with pytest.raises(ValueError, match="on cuda"):
        store.put("other", Tensor(source, device="cuda"))
    with pytest.raises(ValueError, match="not contiguous"):
        store.put("other", Tensor(source[::2]))


def test_a_tensor_whose_memory_was_taken_away_is_refused(store: Store) -> None:
    # A tensor whose storage was resized to nothing, as sharded training does, still has its numel, and its address is 0:
    # reading it ended the process.
    class Emptied(Tensor):
        def data_ptr(self) -> int:
            return 0

    emptied = Emptied(numpy.zeros(4096, dtype=numpy.uint8))
    with pytest.raises(ValueError, match="no memory"):
        store.put("k", emptied)
    store.put("k", bytes(4096))
    with pytest.raises(ValueError, match="no memory"):
        store.get_into("k", emptied)


def test_get_into_fills_the_callers_memory_and_says_how_much(store: Store) -> None:
    store.put("k", b"12345")
    buffer = bytearray(b"........")
    assert store.get_into("k", buffer) == 5
    assert buffer == b"12345..."
    assert store.get_into("none", buffer) is None
    array = numpy.zeros(5, dtype=numpy.uint8)
    assert store.get_into("k", array) == 5
    assert array.tobytes() == b"12345"


def test_a_buffer_that_cannot_take_the_value_is_refused(store: Store) -> None:
    store.put("k", b"12345")
    with pytest.raises(slackwater.RefusedError, match="5 bytes") as caught:
        store.get_into("k", bytearray(4))
    assert caught.value.code == slackwater.ErrorCode.INVALID_PARAMS
    with pytest.raises(ValueError, match="read-only"):
        store.get_into("k", b"12345")
    with pytest.raises(ValueError, match="C-contiguous"):
        store.get_into("k", numpy.zeros((4, 4), dtype=numpy.uint8)[:, ::2])


def test_batches_answer_for_each_key(store: Store) -> None:
    keys = ["a", "b", "c"]
    assert store.put_batch(keys, [b"1", b"22", b"333"]) == [True, True, True]
    assert store.put_batch(["c", "d"], [b"x", b"4444"]) == [False, True]
    assert store.get_batch(["a", "none", "c"]) == [b"1", None, b"333"]
    buffers = [bytearray(4), bytearray(1), bytearray(4)]
    lengths = store.get_batch_into(["a", "b", "d"], buffers)
    assert lengths[0] == 1 and lengths[2] == 4
    assert isinstance(lengths[1], slackwater.RefusedError)
    assert buffers[0][:1] == b"1" and buffers[2] == b"4444"
    assert store.exists_batch(["a", "none"]) == [True, False]


def test_a_prefix_ends_at_the_first_gap(store: Store) -> None:
    store.put_batch(["a", "c"], [b"1", b"3"])
    chain = Chain(parent="root", position=1, expect="continues", hint=3, output_tokens=250)
    assert "expect='continues', hint=3" in repr(chain)
    assert store.get_batch(["a", "b", "c"], prefix_only=True, chain=chain) == [b"1", None, None]
    assert store.get_batch(["a", "b", "c"]) == [b"1", None, b"3"]


def test_an_expectation_is_one_of_two_words() -> None:
    assert "expect='ends'" in repr(Chain(expect="ends"))
    assert "expect=None" in repr(Chain())
    with pytest.raises(ValueError, match="expect: `soon` is neither"):
        Chain(expect="soon")  # type: ignore[arg-type]


def test_buffers_of_one_call_must_not_overlap(store: Store) -> None:
    store.put_batch(["a", "b"], [b"1", b"2"])
    memory = bytearray(2)
    view = memoryview(memory)
    assert store.get_batch_into(["a", "b"], [view[:1], view[1:]]) == [1, 1]
    assert memory == b"12"
    with pytest.raises(ValueError, match="overlap"):
        store.get_batch_into(["a", "b"], [memory, memory])


def test_removed_values_are_gone(store: Store) -> None:
    store.put_batch([f"p/{i}" for i in range(5)] + ["q"], [b"v"] * 6)
    assert store.remove("p/0") is True
    assert store.remove("p/0") is False
    assert store.remove_batch(["p/1", "none"]) == [True, False]
    assert store.list(pattern="^p/") == [b"p/2", b"p/3", b"p/4"]
    assert store.list(after="p/2", limit=2) == [b"p/3", b"p/4"]
    assert store.remove_matching("^p/") == 3
    assert store.remove_all() == 1
    assert store.list() == []


def test_a_list_holds_every_key_or_as_many_as_the_caller_names(store: Store) -> None:
    # `list()` returned the first 1,000 keys and dropped the mark that said there were more: a caller who took it for
    # everything lost the rest, and one who went on until a page was shorter than its limit stopped at the store's own.
    keys = [f"{i:05}".encode() for i in range(1500)]
    store.put_batch(keys, [b"v"] * len(keys))
    assert store.list() == keys
    assert store.list(limit=1200) == keys[:1200]
    assert store.list(limit=1200, after=keys[1199]) == keys[1200:]
    assert store.list(limit=0) == []


def test_tenants_do_not_see_each_other() -> None:
    with Store(memory="16MiB", tenants=True, log="off") as store:
        with pytest.raises(slackwater.RefusedError) as caught:
            store.put("k", b"mine", tenant="acme")
        assert caught.value.code is slackwater.ErrorCode.TENANT_NOT_REGISTERED
        store.set_quota("acme", memory="1MiB")
        store.put("k", b"mine", tenant="acme")
        assert store.get("k") is None
        assert store.get("k", tenant="acme") == b"mine"
        with pytest.raises(ValueError, match="reserved"):
            store.get("k", tenant="_x")
        with pytest.raises(slackwater.RefusedError) as caught:
            store.delete_quota("acme")
        assert caught.value.code is slackwater.ErrorCode.TENANT_NOT_EMPTY
        store.remove("k", tenant="acme", force=True)
        store.delete_quota("acme")


def test_quotas_tell_what_each_tenant_may_and_does_hold() -> None:
    with Store(memory="16MiB", tenants=True, log="off") as store:
        store.set_quota("acme", memory="1MiB", ssd="2MiB")
        store.put("k", bytes(5000), tenant="acme")
        store.put("k", b"mine")
        quotas = {quota["tenant"]: quota for quota in store.quotas()}
        acme, ours = quotas.pop("acme"), quotas.pop("default")
        assert quotas == {}
        assert (acme["memory_quota"], acme["ssd_quota"], acme["objects"]) == (1 << 20, 2 << 20, 1)
        assert acme["memory_bytes"] >= 5000
        assert acme["ssd_bytes"] == 0
        assert (ours["memory_quota"], ours["ssd_quota"], ours["objects"]) == (None, None, 1)
        store.remove("k", tenant="acme", force=True)
        store.delete_quota("acme")
        assert "acme" not in {quota["tenant"] for quota in store.quotas()}


def test_large_values_keep_every_byte(store: Store) -> None:
    value = numpy.random.default_rng(1).integers(0, 256, 3_000_001, dtype=numpy.uint8)
    store.put("k", value)
    assert store.get("k") == value.tobytes()
    target = numpy.zeros_like(value)
    assert store.get_into("k", target) == value.nbytes
    assert (target == value).all()
