"""Memory on GPUs by process, from NVIDIA's management library, without starting a process."""

from __future__ import annotations

import ctypes

_NOT_KNOWN = 2**64 - 1
_TOO_SMALL = 7


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The library, loaded and started.

    Raises:
        OSError: There is none, or no driver.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")

    def used_nbytes(self) -> dict[int, int]:
        """Bytes of all GPUs together, by process; those whose figure is hidden are left out.

        Raises:
            OSError: The library failed.
        """
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        used: dict[int, int] = {}
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            for process in self._processes(device):
                if process.used != _NOT_KNOWN:
                    used[process.pid] = used.get(process.pid, 0) + process.used
        return used

    def _processes(self, device: ctypes.c_void_p) -> list[_Process]:
        function = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        room = 64
        while True:
            length = ctypes.c_uint(room)
            found = (_Process * room)()
            status = function(device, ctypes.byref(length), found)
            if status == _TOO_SMALL:
                room = max(room * 2, length.value + 16)
                continue
            if status:
                raise OSError(f"nvmlDeviceGetComputeRunningProcesses_v3 failed: {status}")
            return list(found[: length.value])

    def _call(self, name: str, *arguments: object) -> None:
        try:
            status = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise OSError(f"this driver has no {name}") from error
        if status:
            raise OSError(f"{name} failed: {status}")
