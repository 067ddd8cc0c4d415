"""What a device can do, and what is done where it cannot."""

import importlib.util
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
from tests.support.kernels import sampled_scored_and_lost

from oneshot.system import devices
from oneshot.system.devices import one_thread

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """No device has been tried before the test, nor is what it found kept."""
    devices._runs_kernel.cache_clear()
    yield
    devices._runs_kernel.cache_clear()


def test_with_a_broken_triton_all_that_has_kernels_takes_the_plain_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = sampled_scored_and_lost()
    broken = pytest.importorskip("oneshot.system._triton", reason="needs Triton")
    tried = []

    def fail(device: torch.device) -> bool:
        tried.append(device)
        raise RuntimeError("Failed to find C compiler.\nPlease specify one via CC.")

    monkeypatch.setattr(broken, "writes", fail)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # else a CPU has no kernels to begin with
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        batch, *numbers = sampled_scored_and_lost()
    (message,) = [str(warning.message) for warning in told]
    assert "do not work on cpu (RuntimeError: Failed to find C compiler.)" in message
    assert "install a C compiler" in message
    assert tried == [CPU]
    for name, tensor in vars(expected[0]).items():
        assert torch.equal(getattr(batch, name), tensor), name
    for one, other in zip(numbers, expected[1:], strict=True):
        assert torch.equal(one, other)


def test_a_wrong_result_is_a_failure_and_out_of_memory_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = pytest.importorskip("oneshot.system._triton", reason="needs Triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def fail(device: torch.device) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as short:
        short.setattr(broken, "writes", fail)
        with pytest.raises(torch.OutOfMemoryError):
            devices.kernels_work(CPU)
    monkeypatch.setattr(broken, "writes", lambda device: False)
    with pytest.warns(UserWarning, match="a kernel returned a wrong result"):
        assert not devices.kernels_work(CPU)
    assert not devices.kernels_work(CPU)  # and no second warning, which would be an error


def test_without_triton_the_warning_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="Triton is not installed.* pip install triton"):
        assert not devices.kernels_work(CPU)


def test_a_device_without_kernels_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not devices.kernels_work(CPU)
    assert not devices.kernels_work(torch.device("meta"))
    assert devices._runs_kernel.cache_info().currsize == 0


def test_memory_of_the_host() -> None:
    total = devices.total_memory(CPU)
    assert total is not None
    assert 0 < devices.available_memory(CPU) <= total


def test_a_host_that_does_not_tell_is_taken_for_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    monkeypatch.setattr(devices.os, "sysconf", lambda name: 1000)
    assert devices.total_memory(CPU) == 10**6
    assert devices.available_memory(CPU) == 500_000
    monkeypatch.setattr(devices.os, "sysconf", missing)
    assert devices.total_memory(CPU) is None
    assert devices.available_memory(CPU) == 4 << 30


def test_memory_of_a_gpu_is_what_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 50}
    for name, value in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert devices.available_memory(torch.device("cuda", 0)) == 120


def test_one_thread_within_the_block() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            with one_thread():
                pass
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        with pytest.raises(ValueError, match="within"), one_thread():
            raise ValueError("within")
        assert torch.get_num_threads() == 3

        def beside() -> None:
            with one_thread():  # would set the number of the main thread
                seen.append(torch.get_num_threads())

        seen: list[int] = []
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        assert seen == [3]
    finally:
        torch.set_num_threads(before)
