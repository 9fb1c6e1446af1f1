"""`MooncakeDistributedNoFRegister`: scripts that register SSDs are told that there are none to register."""

import logging
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedNoFRegister

REGISTERED = ("nqn.2016-06.io.spdk:cnode1", 1, "127.0.0.1", 4420, 0, 1 << 20, "127.0.0.1:50051")
UNREGISTERED = (*REGISTERED[:4], REGISTERED[-1])


def test_no_ssd_is_registered_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    register = MooncakeDistributedNoFRegister()
    with caplog.at_level(logging.ERROR, "slackwater.mooncake"):
        assert register.real_register(*REGISTERED) == -1
        assert register.real_unregister_by_endpoint(*UNREGISTERED) == -1
    assert len(caplog.records) == 2 and all("cnode1 at 127.0.0.1" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("wrong", [{0: 5}, {1: "1"}, {3: 1.5}, {4: None}])
def test_other_types_are_refused(wrong: dict[int, Any]) -> None:
    register = MooncakeDistributedNoFRegister()
    for method, given in ((register.real_register, REGISTERED), (register.real_unregister_by_endpoint, UNREGISTERED)):
        with pytest.raises(TypeError):
            method(*(wrong.get(place, value) for place, value in enumerate(given)))
    with pytest.raises(TypeError):
        register.real_register("nqn")  # type: ignore[call-arg]
