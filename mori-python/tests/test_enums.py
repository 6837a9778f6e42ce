"""The enums behave as existing programs expect."""

import copy
import pickle

import pytest

import mori.cpp
import mori.io
from mori.cpp import BackendType, MemoryLocationType, PeerFailureReason, PollCqMode, StatusCode

MEMBERS = {
    BackendType: {"Unknown": 0, "XGMI": 1, "RDMA": 2, "TCP": 3, "FABRIC": 4},
    MemoryLocationType: {"Unknown": 0, "CPU": 1, "GPU": 2},
    StatusCode: {
        "SUCCESS": 0,
        "INIT": 1,
        "IN_PROGRESS": 2,
        "ERR_INVALID_ARGS": 11,
        "ERR_NOT_FOUND": 12,
        "ERR_RDMA_OP": 13,
        "ERR_BAD_STATE": 14,
        "ERR_GPU_OP": 15,
    },
    PollCqMode: {"POLLING": 0, "EVENT": 1},
    PeerFailureReason: {
        "UNKNOWN": 0,
        "PEER_UNREACHABLE": 1,
        "LOCAL_QP_ERROR": 2,
        "LOCAL_PORT_DOWN": 3,
        "LOCAL_DEVICE_FATAL": 4,
        "LOCAL_CQ_ERROR": 5,
    },
}
ALL = [(enum, name, value) for enum, members in MEMBERS.items() for name, value in members.items()]


@pytest.mark.parametrize("enum, name, value", ALL)
def test_a_member_has_its_name_its_number_and_its_text(enum, name, value):
    member = getattr(enum, name)
    assert (member.name, member.value, int(member), member.__index__()) == (name, value, value, value)
    assert str(member) == f"{member}" == "{}".format(member) == f"{enum.__name__}.{name}"
    assert repr(member) == f"<{enum.__name__}.{name}: {value}>"
    assert f"{member:>40}".strip() == str(member)
    assert list(range(100))[member] == value
    assert enum(value) is member
    assert enum.__members__[name] is member


@pytest.mark.parametrize("enum, name, value", ALL)
def test_members_are_singletons_that_can_be_pickled_and_hashed(enum, name, value):
    member = getattr(enum, name)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(member, protocol)) is member
    assert copy.deepcopy(member) is member
    assert {member: 1}[enum(value)] == 1


def test_members_are_equal_to_their_own_enums_members_only():
    assert StatusCode.SUCCESS == StatusCode.SUCCESS
    assert StatusCode.SUCCESS != StatusCode.INIT
    assert StatusCode.SUCCESS != 0
    assert 0 != StatusCode.SUCCESS
    assert StatusCode.SUCCESS != BackendType.Unknown
    assert not isinstance(StatusCode.SUCCESS, int)


def test_an_unknown_number_is_a_value_error():
    with pytest.raises(ValueError):
        StatusCode(10)


def test_further_failures_are_greater_than_ten():
    extra = [code for code in StatusCode if code.value > 15]
    assert extra and all(code.name.startswith("ERR_") and code.value >= 32 for code in extra)


def test_io_and_cpp_export_the_same_objects():
    for name in mori.io.__all__:
        if name != "TORCH_DEVICE_TYPE_MAP":
            assert getattr(mori.io, name) is getattr(mori.cpp, name), name
    assert mori.io.TORCH_DEVICE_TYPE_MAP == {"cpu": MemoryLocationType.CPU, "cuda": MemoryLocationType.GPU}
    assert "TransferStatus" in mori.cpp.__all__
