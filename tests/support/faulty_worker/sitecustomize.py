"""Makes workers fail as a test says: Python runs this in every process that has it on its path.

`faulty.py` beside this folder starts daemons with it. The product has no hooks: what a worker does
is wrapped here, from outside. A frame's first byte tells what befalls it, the file `fault` in a
model's folder what befalls its loading.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any

if "mcpd.daemon" in sys.orig_argv and "MCPD_TEST_SERVE_S" in os.environ:
    from mcpd.daemon import bindings

    bindings.SERVE_TIMEOUT_S = float(os.environ["MCPD_TEST_SERVE_S"])

if "mcpd.daemon.worker" in sys.orig_argv:
    from mcpd.daemon.engines import onnx
    from mcpd.daemon.worker import binding, serving
    from mcpd.shm.slot import Slot
    from tests.support.faulty_levels import Fault

    load, run = onnx.OnnxEngine.load, onnx.OnnxEngine.run
    publish, open_binding = Slot.publish, binding.open_binding
    step = binding.Binding.step
    folder: list[str] = []
    after_publish: list[int] = []

    def die(signum: int) -> None:
        """Sends itself a signal."""
        os.kill(os.getpid(), signum)

    def stick_in_c() -> None:
        """Waits for ever in C, with the interpreter's lock held."""
        mutex = ctypes.create_string_buffer(64)
        library = ctypes.PyDLL(None)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)

    def fault_of_loading() -> str:
        """What the model's folder says, "" for none."""
        try:
            with open(os.path.join(folder[0], "fault")) as file:
                return file.read().strip()
        except OSError:
            return ""

    def faulty_load(self: Any, path: Any, config: Any) -> None:
        """As OnnxEngine.load, if it comes that far."""
        folder.append(str(config.path))
        match fault_of_loading():
            case "crash":
                print("the fault: no such device", file=sys.stderr)
                die(signal.SIGSEGV)
            case "hang":
                time.sleep(3600)
        load(self, path, config)

    def faulty_run(self: Any, inputs: Any) -> Any:
        """As OnnxEngine.run, or what the frame's first byte says."""
        first = next(iter(inputs.values()))
        level = int(first.flat[0]) if first.dtype == "uint8" else 0
        match level:
            case Fault.CRASH:
                die(signal.SIGSEGV)
            case Fault.HANG:
                time.sleep(3600)
            case Fault.HANG_IN_C:
                stick_in_c()
            case Fault.STOP:
                die(signal.SIGSTOP)
            case Fault.SLOW:
                time.sleep(0.3)
        outputs = run(self, inputs)
        if level == Fault.DIE_BEFORE_PUBLISH:
            die(signal.SIGKILL)
        if level in (Fault.DIE_AFTER_PUBLISH, Fault.STUCK_AFTERWARDS):
            after_publish.append(level)
        return outputs

    def faulty_publish(self: Any) -> int:
        """As Slot.publish; the worker does not come further if the frame said so."""
        seq = publish(self)
        if after_publish == [Fault.DIE_AFTER_PUBLISH]:
            die(signal.SIGKILL)
        return seq

    def faulty_step(self: Any, *arguments: Any) -> bool:
        """As Binding.step; the worker does not come back from it if the frame said so."""
        worked = step(self, *arguments)
        if after_publish:
            time.sleep(3600)
        return worked

    def faulty_open(*arguments: Any) -> Any:
        """As open_binding, unless the model's folder says otherwise."""
        match fault_of_loading():
            case "crash-at-serve":
                os.unlink(os.path.join(folder[0], "fault"))
                die(signal.SIGKILL)
            case "hang-at-serve":
                os.unlink(os.path.join(folder[0], "fault"))
                time.sleep(3600)
        return open_binding(*arguments)

    onnx.OnnxEngine.load, onnx.OnnxEngine.run = faulty_load, faulty_run  # type: ignore[method-assign]
    setattr(binding.Binding, "step", faulty_step)  # noqa: B010
    Slot.publish = faulty_publish  # type: ignore[method-assign]
    setattr(serving, "open_binding", faulty_open)  # noqa: B010
