"""What each call returns: success, miss, misuse, failure."""

from typing import Any

import calls
import mooncake.store
import pytest

SMALL, OTHER, EMPTY = {"bytes": "hello"}, {"bytes": "other bytes"}, {"bytes": ""}
KEPT = ["put", ["k", SMALL]], 0
MISSING: list[int] = []


def at(offset: int) -> dict[str, int]:
    """An address in the memory of the player."""
    return {"@": offset}


def config(**fields: Any) -> dict[str, Any]:
    """A `ReplicateConfig`."""
    return {"config": fields}


PAGES = ["batch_put_from", [["a", "b"], [at(0), at(10)], [10, 20]]], [0, 0]

# Calls in order, each with its result.
TABLE: dict[str, list[tuple[list[Any], Any]]] = {
    "put": [
        KEPT,
        (["put", ["k", OTHER]], 0),
        (["get", ["k"]], SMALL),
        (["put", [], {"key": "named", "value": SMALL, "config": config()}], 0),
        (["put", ["", SMALL]], -600),
        (["put", ["e", EMPTY]], -600),
        (["put", ["k", "text"]], {"raises": "TypeError"}),
        (["put", [3, SMALL]], {"raises": "TypeError"}),
        (["put", ["k", SMALL, None]], {"raises": "TypeError"}),
        (["put", ["k", SMALL], {"wrong": 1}], {"raises": "TypeError"}),
        (["put", ["long", {"filled": [1, (16 << 20) + 1]}]], -600),
        (["put", ["k" * 1025, SMALL]], -600),
    ],
    "get": [
        KEPT,
        (["get", ["k"]], SMALL),
        (["get", ["none"]], EMPTY),
        (["get", [""]], EMPTY),
        (["get", [7]], {"raises": "TypeError"}),
        (["get_batch", [["k", "none"]]], [SMALL, EMPTY]),
        (["get_batch", [[]]], []),
        (["get_batch", ["k"]], {"raises": "TypeError"}),
    ],
    "handles": [
        KEPT,
        (["get_buffer", ["k"]], {"handle": SMALL}),
        (["get_buffer", ["none"]], None),
        (["batch_get_buffer", [["none", "k"]]], [None, {"handle": SMALL}]),
        (["batch_get_buffer", [[]]], []),
    ],
    "put_batch": [
        (["put_batch", [["a", "b"], [SMALL, OTHER]]], 0),
        (["get_batch", [["a", "b"]]], [SMALL, OTHER]),
        (["put_batch", [["a"], [SMALL, OTHER]]], -600),
        (["put_batch", [[], []]], 0),
        (["put_batch", [["c", ""], [SMALL, SMALL]]], -600),
        (["is_exist", ["c"]], 1),
        (["put_batch", [["d", "e"], [SMALL, EMPTY]]], -600),
        (["is_exist", ["d"]], 0),
        (["put_batch", [["d"], ["text"]]], {"raises": "TypeError"}),
    ],
    "parts": [
        (["put_parts", ["k", {"bytes": "hel"}, EMPTY, {"bytes": "lo"}]], 0),
        (["get", ["k"]], SMALL),
        (["put_parts", ["none"]], 0),
        (["put_parts", ["none", EMPTY]], 0),
        (["is_exist", ["none"]], 0),
        (["put_parts", ["c", SMALL], {"config": config()}], 0),
        (["put_parts", ["c", "text"]], {"raises": "TypeError"}),
        (["upsert_parts", ["k", OTHER]], 0),
        (["get", ["k"]], OTHER),
        (["upsert_parts", ["k"]], 0),
        (["put_parts", ["c", SMALL], {"config": config(replica_num=0)}], -600),
    ],
    "exist": [
        KEPT,
        (["is_exist", ["k"]], 1),
        (["is_exist", ["none"]], 0),
        (["is_exist", [""]], 0),
        (["batch_is_exist", [["k", "", "none", "k"]]], [1, 0, 0, 1]),
        (["batch_is_exist", [["x" * 2000, "k"]]], [0, 1]),
        (["batch_is_exist", [[]]], []),
        (["get_size", ["k"]], 5),
        (["get_size", ["none"]], -704),
        (["get_size", [""]], -704),
    ],
    "registering": [
        (["register_buffer", [at(0), 1000]], 0),
        (["register_buffer", [at(0), 1000]], -600),
        (["register_buffer", [at(999), 1000]], -600),
        (["register_buffer", [at(1000), 1000]], 0),
        (["register_buffer", [0, 10]], -600),
        (["register_buffer", [at(5000), 0]], -600),
        (["register_buffer", [-1, 10]], {"raises": "TypeError"}),
        (["register_buffer", [1.5, 10]], {"raises": "TypeError"}),
        (["unregister_buffer", [at(5)]], -600),
        (["unregister_buffer", [at(0)]], 0),
        (["unregister_buffer", [at(0)]], -600),
        (["unregister_buffer", [at(1000)]], 0),
    ],
    "put_from": [
        (["put_from", ["k", at(0), 100]], 0),
        (["put_from", ["k", at(7), 100]], 0),
        (["get_into", ["k", at(1000), 100]], 100),
        (["get_into", ["k", at(1000), 1000]], 100),
        (["get_into", ["k", at(1000), 99]], -600),
        (["get_into", ["k", at(1000), 0]], -600),
        (["get_into", ["none", at(1000), 99]], -704),
        (["get_into", ["none", at(1000), 0]], -704),
        (["get_into", ["k", 0, 100]], -600),
        (["put_from", ["e", at(0), 0]], 0),
        (["is_exist", ["e"]], 0),
        (["put_from", ["n", 0, 10]], -600),
        (["put_from", ["n", at(0), 1 << 63]], -600),
        (["put_from", ["n", at(0), -1]], {"raises": "TypeError"}),
        (["upsert_from", ["k", at(0), 10]], 0),
        (["get_size", ["k"]], 10),
        (["upsert_from", ["k", at(0), 0]], 0),
        (["put_from", ["none", at(0), 10, config(prefer_alloc_in_same_node=True)]], -600),
    ],
    "batches": [
        PAGES,
        (["batch_get_into", [["a", "b", "none"], [at(100), at(200), at(300)], [10, 19, 10]]], [10, -600, -704]),
        (["batch_get_into", [["a", "b"], [at(100), at(100)], [10, 20]]], [10, 20]),
        (["batch_get_into", [["a", "b"], [0, at(100)], [10, 20]]], [-600, 20]),
        (["batch_get_into", [["a"], [at(0), at(0)], [10]]], [-600]),
        (["batch_get_into", [[], [], []]], []),
        (["batch_put_from", [["c", "c", "d"], [at(0), at(1), at(2)], [1, 2, 3]]], [0, 0, 0]),
        (["get_size", ["c"]], 1),
        (["batch_put_from", [["", "e", "f"], [at(0)] * 3, [5, 0, 5]]], [-600, -600, 0]),
        (["batch_put_from", [["g"], [at(0)] * 2, [5]]], [-600]),
        (["batch_put_from", [[], [], []]], []),
        (["batch_upsert_from", [["c", "d"], [at(0)] * 2, [7, 8]]], [0, 0]),
        (["get_size", ["c"]], 7),
        (["batch_upsert_from", [["c"], [at(0)] * 2, [7]]], [-600]),
        (["batch_upsert_from", [["c", "d", "c", "n", "c"], [at(0)] * 5, [1, 2, 3, 4, 9]]], [0] * 5),
        (["get_size", ["c"]], 9),
        (["batch_get_into", [["", "x" * 2000], [at(0), at(99)], [5, 5]]], [-704, -704]),
        (["batch_get_into_multi_buffers", [[""], [[at(0), at(99)]], [[5, 5]]]], [-704]),
        (["batch_put_from", [["h", "i"], [at(0)] * 2, [5, 5], config(replica_num=0)]], [-600, -600]),
        (["upsert_batch", [["c"], [SMALL]]], 0),
        (["get", ["c"]], SMALL),
        (["upsert_batch", [["c"], []]], -600),
        (["upsert", ["c", OTHER]], 0),
        (["upsert", ["new", OTHER]], 0),
        (["upsert", ["c", EMPTY]], -600),
        (["get_batch", [["c", "new"]]], [OTHER, OTHER]),
    ],
    "multi_buffers": [
        (["batch_put_from_multi_buffers", [["a", "b"], [[at(0), at(100)], [at(7)]], [[10, 20], [5]]]], [0, 0]),
        (["batch_get_into_multi_buffers", [["a"], [[at(500), at(600)]], [[20, 10]]]], [30]),
        (["batch_get_into_multi_buffers", [["a", "b", "none"], [[at(500)], [at(600)], [at(700)]], [[29], [5], [5]]]],
         [-600, 5, -704]),
        (["batch_get_into_multi_buffers", [["a", "a"], [[at(500), at(600)]] * 2, [[20, 11], [9, 20]]]], [-600, -600]),
        (["batch_get_into_multi_buffers", [["a"], [[at(500)]], [[31]]]], [-600]),
        (["batch_get_into_multi_buffers", [["a"], [[]], [[]]]], [-600]),
        (["batch_get_into_multi_buffers", [["none", "a"], [[]], [[]]]], [-600, -600]),
        (["batch_get_into_multi_buffers", [["a"], [[at(0), 1 << 20]], [[10, 1 << 50]]], {}], [-600]),
        (["batch_get_into_multi_buffers", [["a"], [[at(500), at(600)]], [[20, 10]], True]], [30]),
        (["batch_put_from_multi_buffers", [["c", "d", ""], [[at(0)], [at(0)] * 2, [at(0)] * 2], [[5], [5], [5, 5]]]],
         [0, -600, -600]),
        (["batch_put_from_multi_buffers", [["e", "f"], [[], [at(0), 0]], [[], [5, 5]]]], [-600, -600]),
        (["batch_put_from_multi_buffers", [["e", "f"], [[at(0)]], [[5]]]], [-600, -600]),
        (["batch_put_from_multi_buffers", [[], [], []]], []),
        (["batch_put_from_multi_buffers", [["g"], [[at(0)]], [[5]], config(prefer_alloc_in_same_node=True)]], [0]),
        (["batch_put_from_multi_buffers", [["h"], [[at(0)]], [[5]], config(dfs_replica_num=1)]], [-1601]),
        # Lengths that no memory has ended the process: the memory to put them together in was taken as asked for.
        (["batch_put_from_multi_buffers", [["h"], [[at(0), at(100)]], [[10, 1 << 62]]]], [-200]),
        (["batch_put_from_multi_buffers", [["h"], [[at(0), at(100)]], [[1 << 62, 1 << 62]]]], [-600]),
        (["batch_get_into_multi_buffers", [["a"], [[at(0), at(100)]], [[1 << 62, 1 << 62]]]], [-600]),
        (["batch_get_into_multi_buffers", [["a"], [[at(0), at(100)]], [[10, 1 << 62]]]], [-600]),
    ],
    "metadata": [
        (["put_from_with_metadata", ["k", at(65), at(97), 3, 2]], 0),
        (["get", ["k"]], {"bytes": "abABC"}),
        (["put_from_with_metadata", ["k", at(0), at(0), 3, 2]], 0),
        (["get", ["k"]], {"bytes": "abABC"}),
        (["put_from_with_metadata", ["none", at(65), at(97), 0, 2]], 0),
        (["is_exist", ["none"]], 0),
        (["put_from_with_metadata", ["data", at(65), at(97), 3, 0]], 0),
        (["get", ["data"]], {"bytes": "ABC"}),
        (["put_from_with_metadata", ["", at(65), at(97), 3, 2]], -600),
        (["put_from_with_metadata", ["n", 0, at(97), 3, 2]], -600),
        (["put_from_with_metadata", ["n", at(65), at(97), 1 << 62, 2]], -200),
        (["put_from_with_metadata", ["n", at(65), at(97), 1 << 62, 1 << 62]], -600),
        (["put_from_with_metadata", ["n", at(65), at(97), 3, 2, config(replica_num=0)]], -600),
    ],
    "ranges": [
        PAGES,
        (["register_buffer", [at(0), 2000]], 0),
        (["get_into_ranges", [[at(500), at(600)], [["b", "none"], ["a"]], [[[0, 9], [7]], [[0]]],
                              [[[5, 0], [0]], [[0]]], [[[5, 5], [3]], [[10]]]]], [[[5, 5], [-704]], [[10]]]),
        (["get_into_ranges", [[at(0)], [["b"]], [[[0, 0]]], [[[15, 15]]], [[[10, 5]]]]], [[[-600, 5]]]),
        (["get_into_ranges", [[at(0)], [["b"]], [[[1995, 1996]]], [[[0, 0]]], [[[5, 5]]]]], [[[5, -600]]]),
        (["get_into_ranges", [[at(0)], [["b"]], [[[0]]], [[[0, 1]]], [[[5]]]]], [[[-600]]]),
        (["get_into_ranges", [[at(0)], [["b", "a"]], [[[0]]], [[[0]]], [[[5]]]]], [[[-600], [-600]]]),
        (["get_into_ranges", [[at(0)], [["b"]], [[[]]], [[[]]], [[[]]]]], [[[]]]),
        (["get_into_ranges", [[], [], [], [], []]], []),
        (["unregister_buffer", [at(0)]], 0),
        (["get_into_ranges", [[at(0)], [["b", "none"]], [[[0], [0]]], [[[0], [0]]], [[[5], [5]]]]], [[[-600], [-600]]]),
    ],
    "removal": [
        (["put_batch", [["a1", "a2", "b1"], [SMALL] * 3]], 0),
        (["remove", ["a1"]], 0),
        (["remove", ["a1"]], -704),
        (["remove", [""]], -704),
        (["get", ["a2"]], SMALL),
        (["remove", ["a2"]], -706),
        (["remove_all", []], 1),
        (["remove", ["a2", True]], 0),
        (["put_batch", [["a1", "a2", "b1"], [SMALL] * 3]], 0),
        (["remove_by_regex", ["^a"], {"force": True}], 2),
        (["remove_by_regex", ["("]], -600),
        (["remove_by_regex", ["^c"]], 0),
        (["batch_remove", [["b1", "none", ""]], {"force": True}], [0, -704, -704]),
        (["batch_remove", [["", "x" * 2000]]], [-704, -704]),
        (["batch_remove", [[]]], []),
        (["remove_all", [True]], 0),
    ],
    "clearing": [
        (["put_batch", [["a", "b", "c"], [SMALL] * 3]], 0),
        (["get", ["b"]], SMALL),
        (["batch_replica_clear", [["a", "b", "none", ""]]], ["a"]),
        (["batch_is_exist", [["a", "b", "c"]]], [0, 1, 1]),
        (["batch_replica_clear", [["c"], "nowhere"]], []),
        (["batch_replica_clear", [[]]], []),
        (["batch_replica_clear", ["c"]], {"raises": "TypeError"}),
    ],
    "replicas": [
        KEPT,
        (["get_replica_desc", ["k"]], [["COMPLETE", True, False]]),
        (["get_replica_desc", ["none"]], []),
        (["batch_get_replica_desc", [["none", "", "k"]]], {"k": [["COMPLETE", True, False]]}),
    ],
    "configurations": [
        (["put", ["a", SMALL, config(replica_num=3)]], 0),
        (["put", ["b", SMALL, config(replica_num=0)]], -600),
        (["put", ["b", SMALL, config(nof_replica_num=1)]], -600),
        (["put", ["b", SMALL, config(dfs_replica_num=1)]], -1601),
        (["put", ["b", SMALL, config(soft_pin_ttl_ms=5)]], -600),
        (["put", ["b", SMALL, config(soft_pin_action="ENABLE", soft_pin_ttl_ms=86_400_001)]], -600),
        (["put", ["b", SMALL, config(soft_pin_action="ENABLE", soft_pin_ttl_ms=5000)]], 0),
        (["put", ["c", SMALL, config(soft_pin_action="ENABLE", soft_pin_ttl_ms=0)]], 0),
        (["put", ["d", SMALL, config(with_hard_pin=True)]], 0),
        (["put", ["e", SMALL, config(preferred_segment="nowhere")]], 0),
        (["put", ["f", SMALL, config(preferred_segments=["nowhere", "there"])]], 0),
        (["put", ["g", SMALL, config(group_ids=["g"])]], 0),
        (["put", ["h", SMALL, config(group_ids=["g", "h"])]], -600),
        (["put", ["h", SMALL, config(group_ids=[])]], -600),
        (["put_batch", [["h", "i", "j"], [SMALL] * 3, config(group_ids=["g", "", "h"])]], 0),
        (["batch_put_from", [["l", "m"], [at(0)] * 2, [5, 5], config(group_ids=["g", "h"])]], [0, 0]),
        (["batch_put_from", [["n"], [at(0)], [5], config(group_ids=["g", "h"])]], [-600]),
        (["put", ["n", SMALL, config(prefer_alloc_in_same_node=True)]], -600),
        (["put_batch", [["n"], [SMALL], config(prefer_alloc_in_same_node=True)]], -600),
        (["put", ["n", SMALL, config(with_soft_pin=True, session_ids=["s"])]], 0),
    ],
    "read sessions": [
        PAGES,
        (["batch_get_session_start", [["b", "none"]]], [0, -704]),
        (["batch_get_session_start", [["b"]]], [0]),
        (["batch_get_into_multi_buffer_ranges", [["b"], [[at(500), at(600)]], [[5, 6]], [[0, 14]]]], [11]),
        (["batch_get_into_multi_buffer_ranges", [["b"], [[at(500)]], [[5]], [[16]]]], [-600]),
        (["batch_get_into_multi_buffer_ranges", [["a"], [[at(500)]], [[5]], [[0]]]], [-600]),
        (["batch_get_into_multi_buffer_ranges", [["b"], [[at(500)]], [[5, 1]], [[0]]]], [-600]),
        (["batch_get_into_multi_buffer_ranges", [["b"], [], [], []]], [-600]),
        (["batch_get_into_multi_buffer_ranges", [["b"], [[]], [[]], [[]]]], [0]),
        (["batch_get_session_end", [["b", "none"]]], 0),
        (["batch_get_session_end", [["b"]]], 0),
        (["batch_get_into_multi_buffer_ranges", [["b"], [[at(500)]], [[5]], [[0]]]], [-600]),
        (["batch_get_session_start", [["a"]]], [0]),
        (["remove", ["a", True]], 0),
        (["batch_get_into_multi_buffer_ranges", [["a"], [[at(500)]], [[5]], [[0]]]], [-707]),
        (["batch_get_into_multi_buffer_ranges", [["a"], [[at(500)]], [[5]], [[0]]]], [-600]),
    ],
    "write sessions": [
        KEPT,
        (["batch_put_session_start", [["s", "k", "", "z"], [10, 5, 5, 0]]], [0, -705, -600, -600]),
        (["batch_put_session_start", [["s"], [10]]], [-600]),
        (["batch_put_session_start", [["t"], []]], [-600]),
        (["batch_put_session_start", [["t"], [1 << 62]]], [-200]),
        (["batch_put_from_multi_buffer_ranges", [["s"], [[at(65), at(75)]], [[5, 5]], [[5, 0]]]], [10]),
        (["batch_put_from_multi_buffer_ranges", [["s"], [[at(0)]], [[5]], [[6]]]], [-600]),
        (["batch_put_from_multi_buffer_ranges", [["none"], [[at(0)]], [[5]], [[0]]]], [-600]),
        (["is_exist", ["s"]], 0),
        (["batch_put_session_end", [["s", "none"]]], [0, -600]),
        (["get", ["s"]], {"bytes": "KLMNOABCDE"}),
        (["batch_put_session_end", [["s"]]], [-600]),
        (["batch_put_session_start", [["r"], [10]]], [0]),
        (["batch_put_session_revoke", [["r", "none"]]], [0, -600]),
        (["is_exist", ["r"]], 0),
    ],
    "tasks": [
        KEPT,
        (["create_copy_task", ["none", ["x"]]], [[0, 0], -704]),
        (["create_move_task", ["none", "x", "y"]], [[0, 0], -704]),
        (["create_copy_task", ["k", ["x"]]], [[0, 0], -600]),
        (["create_copy_task", ["k", []]], [[0, 0], -600]),
        (["create_copy_task", ["k", "x"]], {"raises": "TypeError"}),
        (["create_move_task", ["k", "x", "y"]], [[0, 0], -600]),
        (["query_task", [[1, 2]]], [None, -1400]),
    ],
}


@pytest.mark.parametrize("name", TABLE)
def test_calls_return_what_they_promise(name: str, player: calls.Player) -> None:
    for call, expected in TABLE[name]:
        assert player.play(call) == expected, call


def test_bytes_arrive_where_they_are_asked_for(player: calls.Player) -> None:
    player.play(PAGES[0])
    assert player.play(["batch_get_into", [["b", "a"], [at(1000), at(2000)], [25, 10]]]) == [20, 10]
    assert player.memory[1000:1020] == bytes(range(10, 30)) and player.memory[2000:2010] == bytes(range(10))
    assert player.play(["batch_get_into_multi_buffers", [["b"], [[at(3000), at(4000)]], [[5, 15]]]]) == [20]
    assert player.memory[3000:3005] == bytes(range(10, 15)) and player.memory[4000:4015] == bytes(range(15, 30))
    gathered = ["batch_put_from_multi_buffers", [["c"], [[at(20), at(25), at(40)]], [[5, 5, 3]]]]
    assert player.play(gathered) == [0]
    assert player.store.get("c") == bytes([*range(20, 30), *range(40, 43)])
    player.store.register_buffer(player.base, calls.MEMORY)
    parts = [[at(5000)], [["b"]], [[[0, 10]]], [[[15, 0]]], [[[5, 3]]]]
    assert player.play(["get_into_ranges", parts]) == [[[5, 3]]]
    assert player.memory[5000:5005] == bytes(range(25, 30)) and player.memory[5010:5013] == bytes(range(10, 13))
    player.store.unregister_buffer(player.base)
    player.store.batch_get_session_start(["b"])
    ranges = [["b"], [[at(6000), at(6100)]], [[5, 3]], [[15, 0]]]
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [8]
    assert player.memory[6000:6005] == bytes(range(25, 30)) and player.memory[6100:6103] == bytes(range(10, 13))
    player.store.batch_get_session_end(["b"])


def test_a_session_reads_parts_of_one_value_into_memory_that_may_overlap(player: calls.Player) -> None:
    player.play(PAGES[0])
    player.store.batch_get_session_start(["b"])
    ranges = [["b"], [[at(6000), at(6002)]], [[5, 5]], [[0, 15]]]
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [10]
    assert player.memory[6000:6007] == bytes([10, 11, *range(25, 30)])
    ranges[3] = [[0, 16]]
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [-600]
    player.store.remove("b", True)
    player.store.put("b", bytes(20))
    ranges[3] = [[0, 15]]
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [-707]
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [-600]


def test_parts_of_several_sessions_that_share_memory_are_written_in_order(player: calls.Player) -> None:
    """One page that two parts shared had every part read alone, each for as long as a call may take."""
    player.play(PAGES[0])
    player.store.put("c", bytes(range(100, 115)))
    player.store.batch_get_session_start(["b", "c"])
    memory = [[at(6000), at(6002), at(6100)], [at(6004), at(6100), at(6200)]]
    ranges = [["b", "c"], memory, [[5, 5, 3], [2, 3, 4]], [[0, 5, 10], [0, 3, 6]]]
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [13, 9]
    first, second = player.store.get("b"), bytes(range(100, 115))
    assert player.memory[6000:6007] == first[:2] + first[5:7] + second[:2] + first[9:10]
    assert player.memory[6100:6103] == second[3:6] and player.memory[6200:6204] == second[6:10]
    # Of a session that has failed, no further part is read.
    player.store.remove("b", True)
    assert player.play(["batch_get_into_multi_buffer_ranges", ranges]) == [-707, 9]
    player.store.batch_get_session_end(["b", "c"])


def test_large_values_lie_in_many_pieces(player: calls.Player) -> None:
    """More is put together at a time than one piece of staging memory holds."""
    keys, pages = [f"k{i}" for i in range(24)], [[at(4096 * page) for page in range(256)]] * 24
    sizes = [[4096] * 128 + [2048] * 128] * 24
    assert player.play(["batch_put_from_multi_buffers", [keys, pages, sizes]]) == [0] * 24
    player.memory[:] = bytes(calls.MEMORY)
    assert player.play(["batch_get_into_multi_buffers", [keys, pages, sizes]]) == [768 << 10] * 24
    assert player.memory[: 512 << 10] == bytes(range(256)) * 2048
    assert player.memory[255 * 4096 : 255 * 4096 + 2048] == bytes(range(256)) * 8


CALLED = {call[0] for rows in TABLE.values() for call, _ in rows}


def test_the_same_key_twice_has_its_value_in_both_places(player: calls.Player) -> None:
    """Where a batch names a key twice, Mooncake fills one of the places."""
    store, value = player.store, b"value"
    assert store.put("k", value) == 0
    assert store.get_batch(["k", "k"]) == [value, value]
    assert [bytes(memoryview(handle)) for handle in store.batch_get_buffer(["k", "k"])] == [value, value]
    assert store.batch_get_into(["k", "k"], [player.base, player.base + 500], [5, 9]) == [5, 5]
    assert player.memory[:5] == player.memory[500:505] == value
    pieces = [[player.base + 100, player.base + 200], [player.base + 300, player.base + 400]]
    assert store.batch_get_into_multi_buffers(["k", "k"], pieces, [[2, 3], [3, 2]]) == [5, 5]
    assert bytes(player.memory[100:102] + player.memory[200:203]) == value
    assert bytes(player.memory[300:303] + player.memory[400:402]) == value


def test_every_call_is_in_the_table() -> None:
    beside = {"allocate_and_mount_segment", "unmount_and_free_segment", "setup", "setup_dummy", "init_all", "close", "health_check", "get_hostname", "alloc_from_mem_pool"}
    beside |= {"get_offload_rpc_read_count", "unmount_local_disk_segment", "mount_segment", "unmount_segment"}
    methods = {name for name in dir(mooncake.store.MooncakeDistributedStore) if name[0] != "_"}
    # Those of tensors have a table of their own.
    assert {name for name in methods - beside if "tensor" not in name} == CALLED
