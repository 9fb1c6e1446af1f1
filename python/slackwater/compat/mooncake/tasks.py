"""Copies and moves of single values between segments: tasks, which the master has as jobs."""

import time
from collections.abc import Sequence

from slackwater._native import RawClient
from slackwater.compat.mooncake.kinds import TaskStatus, TaskType
from slackwater.compat.mooncake.replicas import QueryTaskResponse

_TASK_NOT_FOUND = -1400
_NUMBERS = 1 << 64


class Tasks:
    """The calls of a store about tasks. Segments are named as `get_hostname` names those of a client."""

    _raw: RawClient

    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]:
        """Has a value copied to memory of other names: the id of the task and 0, or (0, 0) and a code."""
        if isinstance(targets, str):
            raise TypeError("targets: expected a list of texts, found a text")
        return self._begun(self._raw.start_task(key, None, list(targets)))

    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        """Has a value moved from memory of one name to that of another: the id of the task and 0, or (0, 0) and a code."""
        return self._begun(self._raw.start_task(key, source, [target]))

    @staticmethod
    def _begun(number: int) -> tuple[tuple[int, int], int]:
        return ((number, 0), 0) if number > 0 else ((0, 0), number)

    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]:
        """How a task is, and 0; None and a code where nothing is known of it."""
        numbers = [one for one in task_id if isinstance(one, int) and 0 <= one < _NUMBERS]
        if len(numbers) != 2 or len(task_id) != 2:
            raise TypeError(f"task_id: expected two numbers from 0 to {_NUMBERS - 1}, found {task_id!r}")
        number, rest = numbers
        found, code = self._raw.query_task(number)
        if found is None or rest:
            return None, code or _TASK_NOT_FOUND
        _, moves, status, age, unchanged, message = found
        now = time.time_ns() // 1_000_000
        task = QueryTaskResponse()
        task.id = (number, rest)
        task.type = TaskType.REPLICA_MOVE if moves else TaskType.REPLICA_COPY
        task.status = TaskStatus(status)
        task.created_at_ms_epoch, task.last_updated_at_ms_epoch = now - age, now - unchanged
        task.message = message
        return task, 0
