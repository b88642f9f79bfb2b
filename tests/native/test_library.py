"""libmcpd, installed into a bare prefix and used as a C, C++ or FFI program would."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import threading
import tomllib
from ctypes import byref, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import pytest

from mcpd.shm import connect
from mcpd.shm.errors import StreamClosed
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked
from tests.support.libmcpd import (
    ROOT,
    CError,
    LibMcpd,
    Meta,
    ReaderOptions,
    StreamOptions,
    TensorStruct,
    compile_program,
    copy_sources,
    image_options,
    make,
    pkg_config,
)

CLOSED, WRITER_DIED, SHUTDOWN = 1, 2, 4


def test_install_holds_library_headers_and_manual_page(prefix: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    assert files == {
        *("include/mcpd.h", "include/mcpd_client.h", "share/man/man3/mcpd.3"),
        *("lib/libmcpd.a", "lib/libmcpd.so", "lib/libmcpd.so.1", f"lib/libmcpd.so.1.{version}"),
        "lib/pkgconfig/mcpd.pc",
    }
    assert pkg_config(prefix, "--modversion", "mcpd") == [version]
    assert pkg_config(prefix, "--libs", "mcpd") == [f"-L{prefix}/lib", "-lmcpd"]


def test_library_exports_what_the_headers_declare_and_nothing_else(prefix: Path) -> None:
    command = ["nm", "-D", "--defined-only", str(prefix / "lib/libmcpd.so")]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    exported = {line.split()[2] for line in listed.splitlines()}
    declared: set[str] = set()
    for header in (prefix / "include").iterdir():
        declared |= set(re.findall(r"MCPD_API[^;]*?\b(mcpd_\w+)\(", header.read_text()))
    assert exported == declared
    dynamic = ["readelf", "-d", str(prefix / "lib/libmcpd.so")]
    shown = subprocess.run(dynamic, check=True, capture_output=True, text=True).stdout
    assert "soname: [libmcpd.so.1]" in shown


def test_destdir_goes_before_every_path(tmp_path: Path) -> None:
    native = copy_sources(tmp_path)
    make(native, "PREFIX=/usr", f"DESTDIR={tmp_path / 'image'}", "CFLAGS=-O0", "install")
    pc = tmp_path / "image/usr/lib/pkgconfig/mcpd.pc"
    assert "prefix=/usr\n" in pc.read_text()
    assert (tmp_path / "image/usr/include/mcpd_client.h").is_file()


@pytest.mark.parametrize("header", ["mcpd.h", "mcpd_client.h"])
@pytest.mark.parametrize(
    ("compiler", "standard"), [("gcc", "-std=c99"), ("gcc", "-std=c11"), ("g++", "-std=c++11")]
)
def test_headers_compile_alone(
    prefix: Path, tmp_path: Path, compiler: str, standard: str, header: str
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not there: apt-get install g++")
    source = tmp_path / ("main.cc" if compiler == "g++" else "main.c")
    # C99 has no enumerators of its own kind for NULL handles; a call proves that C++ links.
    body = "mcpd_close(0); return mcpd_version()[0] == 0;" if "client" in header else "return 0;"
    source.write_text(f"#include <{header}>\nint main(void) {{ {body} }}\n")
    flags = [standard, "-pedantic", str(source)]
    binary = compile_program(prefix, tmp_path / "main", *flags, compiler=compiler)
    assert subprocess.run([binary], check=False).returncode == 0


def test_a_program_links_the_static_library(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("#include <mcpd_client.h>\nint main(void) { mcpd_close(0); return 0; }\n")
    command = ["gcc", f"-I{prefix}/include", str(source), str(prefix / "lib/libmcpd.a"), "-pthread"]
    subprocess.run([*command, "-o", str(tmp_path / "main")], check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


def test_frames_written_in_c_are_read_in_python(
    libmcpd: LibMcpd, bare_daemon: RunningDaemon
) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    stream = libmcpd.create_stream(client, "cam", image_options("i420", 62, 46))
    with connect(bare_daemon.socket) as session:
        with session.open_stream("cam", policy="lossless") as reader:
            assert libmcpd["stream_nreaders"](stream) == 1
            for number in range(1, 20):
                y = np.full((46, 64), number, np.uint8)
                u = np.full((23, 64), 100 + number, np.uint8)
                libmcpd.publish(stream, y.tobytes() + u.tobytes() + u.tobytes(), number * 1000)
                with reader.next(10) as frame:
                    assert (frame.seq, frame.pts_ns) == (number, number * 1000)
                    assert (frame.format, frame.width, frame.height) == ("i420", 62, 46)
                    assert np.array_equal(frame.planes[0], y[:, :62])
                    assert np.array_equal(frame.planes[2], u[:, :31])
            libmcpd["stream_close"](stream)
            with pytest.raises(StreamClosed) as ended:
                reader.next(10)
            assert ended.value.reason == "closed"
        with connect(bare_daemon.socket) as other, other.create_stream("cam", slot_nbytes=8):
            pass  # the name is free
    libmcpd["close"](client)


def test_frames_written_in_python_are_read_in_c(
    libmcpd: LibMcpd, bare_daemon: RunningDaemon
) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    with (
        connect(bare_daemon.socket) as session,
        session.create_stream("cam", width=33, height=21, format="rgb24") as writer,
    ):
        stream = libmcpd.attach(client, "cam", "lossless")
        for number in range(1, 20):
            image = np.random.default_rng(number).integers(0, 256, (21, 33, 3), np.uint8)
            with writer.acquire(10) as slot:
                slot.planes[0][...] = image
                slot.pts_ns = number
                slot.publish()
            pin, meta = libmcpd.next(stream)
            assert (pin >= 0, meta.seq, meta.pts_ns) == (True, number, number)
            frame = libmcpd.frame(stream, pin)
            assert (frame.format, frame.width, frame.height, frame.nplanes) == (1, 33, 21, 1)
            for row in range(21):
                at = frame.offset[0] + row * frame.stride[0]
                assert libmcpd.bytes_at(stream, pin, at, 99) == image[row].tobytes()
            libmcpd.unpin(stream, pin)
        writer.end()
        assert libmcpd.next(stream)[0] == -errno.EPIPE
        assert libmcpd["stream_ended"](stream) == CLOSED
        libmcpd["stream_close"](stream)
    libmcpd["close"](client)


def test_the_writer_of_the_manual_runs(
    prefix: Path, tmp_path: Path, bare_daemon: RunningDaemon
) -> None:
    page = (ROOT / "docs/c.md").read_text()
    (program,) = (b for b in re.findall(r"```c\n(.*?)```", page, re.DOTALL) if "main" in b)
    (tmp_path / "writer.c").write_text(program)
    binary = compile_program(prefix, tmp_path / "writer", str(tmp_path / "writer.c"))
    done = subprocess.run([binary], env=bare_daemon.env, timeout=60, check=False)
    assert done.returncode == 0


def test_tensors_go_both_ways(libmcpd: LibMcpd, bare_daemon: RunningDaemon) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    tensors = (TensorStruct * 2)()
    for tensor, name, dtype, shape in zip(
        tensors, (b"points", b"ids"), (11, 7), ((3, 2), (3,)), strict=True
    ):
        tensor.name, tensor.dtype, tensor.ndim = name, dtype, len(shape)
        for dimension, length in enumerate(shape):
            tensor.shape[dimension] = length
    options = StreamOptions(tensors=tensors, ntensors=2)
    stream = libmcpd.create_stream(client, "facts", options)
    points = np.arange(6, dtype=np.float32).reshape(3, 2)
    ids = np.array([7, 8, 9], np.int32)
    data = points.tobytes().ljust(64, b"\0") + ids.tobytes()
    with connect(bare_daemon.socket) as session, session.open_stream("facts") as reader:
        libmcpd.publish(stream, data)
        with reader.next(10) as frame:
            assert np.array_equal(frame.tensors["points"], points)
            assert np.array_equal(frame.tensors["ids"], ids)
        own = libmcpd.attach(client, "facts")
        pin, _ = libmcpd.next(own)
        seen = TensorStruct()
        assert libmcpd["pinned_ntensors"](own, c_uint32(pin)) == 2
        assert libmcpd["pinned_find"](own, c_uint32(pin), b"ids", byref(seen)) == 0
        assert (seen.dtype, seen.ndim, seen.shape[0], seen.nbytes) == (7, 1, 3, 12)
        assert libmcpd.bytes_at(own, pin, seen.offset, 12) == ids.tobytes()
        assert libmcpd["pinned_find"](own, c_uint32(pin), b"no", byref(seen)) == -errno.ENOENT
        libmcpd["stream_close"](own)
    libmcpd["stream_close"](stream)
    libmcpd["close"](client)


def placed(stride: tuple[int, ...] = (), offset: tuple[int, ...] = ()) -> StreamOptions:
    """An i420 picture whose planes are placed by the caller."""
    options = image_options("i420", 641, 481)
    options.frame.stride[: len(stride)] = stride
    options.frame.offset[: len(offset)] = offset
    return options


@pytest.mark.parametrize(
    ("options", "number", "code", "words"),
    [
        (StreamOptions(), errno.EINVAL, "invalid", "slot_nbytes is 0"),
        (image_options("jpeg", 8, 8), errno.EINVAL, "invalid", "slot_nbytes is 0"),
        (image_options("i420", 0, 8), errno.EINVAL, "invalid", "0 x 8"),
        (image_options("rgb24", 16385, 8), errno.EINVAL, "invalid", "16385 x 8"),
        (image_options("rgb24", 8, 8, slots=1), errno.EINVAL, "invalid", "slots"),
        (image_options("rgb24", 8, 8, slots=4, holds=4), errno.EDQUOT, "limit", "4 slots"),
        (
            placed(stride=(2**64 - 1,)),
            errno.EINVAL,
            "invalid",
            f"plane 0 with offset 0, stride {2**64 - 1}",
        ),
        (placed(stride=(704, 320, 384)), errno.EINVAL, "invalid", "plane 1 has a stride of 320"),
        (placed(stride=(704,)), errno.EINVAL, "invalid", "plane 1 has a stride of 0 bytes"),
        (
            placed(stride=(704, 384, 384), offset=(0, 500_000, 2**64 - 8)),
            errno.EINVAL,
            "invalid",
            f"plane 2 with offset {2**64 - 8}, stride 384 and 241 rows",
        ),
        (image_options("rgb24", 8, 8, slot_nbytes=100), errno.EDQUOT, "limit", "is 100"),
    ],
)
def test_bad_options_give_a_clear_error(
    libmcpd: LibMcpd,
    bare_daemon: RunningDaemon,
    options: StreamOptions,
    number: int,
    code: str,
    words: str,
) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    with pytest.raises(CError, match=re.escape(words)) as failed:
        libmcpd.create_stream(client, "cam", options)
    assert (failed.value.number, failed.value.code) == (-number, code)
    stream = libmcpd.create_stream(client, "cam", image_options("gray8", 8, 8))
    with pytest.raises(CError) as failed:
        libmcpd.create_stream(client, "cam", image_options("gray8", 8, 8))
    assert (failed.value.number, failed.value.code) == (-errno.EEXIST, "exists")
    assert failed.value.hint
    libmcpd["stream_close"](stream)
    libmcpd["close"](client)


def test_no_daemon_is_a_clear_error(libmcpd: LibMcpd, tmp_path: Path) -> None:
    with no_descriptor_leaked():
        for path, number in ((str(tmp_path / "none"), errno.ENOTCONN), ("x" * 200, errno.EINVAL)):
            with pytest.raises(CError) as failed:
                libmcpd.connect(path)
            assert failed.value.number == -number
            assert failed.value.hint


def test_the_daemons_death_ends_everything(libmcpd: LibMcpd, bare_daemon: RunningDaemon) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    stream = libmcpd.create_stream(client, "cam", image_options("gray8", 8, 8))
    reader = libmcpd.attach(client, "cam")
    foreign = connect(bare_daemon.socket)
    writer = foreign.create_stream("other", slot_nbytes=8)
    other = libmcpd.attach(client, "other", "latest")
    waits: list[int] = []
    threads = [
        threading.Thread(target=lambda end=end: waits.append(libmcpd.next(end)[0]))
        for end in (reader, other)
    ]
    for thread in threads:
        thread.start()
    bare_daemon.kill()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert set(waits) <= {-errno.EPIPE, -errno.ECANCELED}
    assert libmcpd["stream_ended"](stream) == SHUTDOWN
    assert libmcpd["stream_ended"](other) == SHUTDOWN
    wait_until(lambda: libmcpd["lost"](client, None) == 1, 20, "the session is lost")
    with pytest.raises(CError) as failed:
        libmcpd.attach(client, "cam")
    assert failed.value.code == "unavailable"
    for end in (stream, reader, other):
        libmcpd["stream_close"](end)
    libmcpd["close"](client)
    writer.close()
    foreign.close()


def test_nothing_is_leaked(libmcpd: LibMcpd, bare_daemon: RunningDaemon) -> None:
    def work() -> None:
        client = libmcpd.connect(bare_daemon.socket)
        stream = libmcpd.create_stream(client, "cam", image_options("gray8", 640, 480))
        reader = libmcpd.attach(client, "cam", "lossless")
        libmcpd.publish(stream, b"x" * 640 * 480)
        assert libmcpd.next(reader)[0] >= 0
        libmcpd["stream_close"](reader)
        libmcpd["stream_close"](stream)
        libmcpd["close"](client)

    def mapped() -> int:
        return sum("mcpd:" in line for line in Path("/proc/self/maps").read_text().splitlines())

    work()  # what is allocated once is there
    before = mapped()
    with no_descriptor_leaked():
        for _ in range(5):
            work()
    assert mapped() == before
    with connect(bare_daemon.socket) as session:
        assert [row for row in session.list("leases") if row["client"] == "ffi"] == []


def test_streams_may_be_closed_after_their_session(
    libmcpd: LibMcpd, bare_daemon: RunningDaemon
) -> None:
    with no_descriptor_leaked():
        client = libmcpd.connect(bare_daemon.socket)
        stream = libmcpd.create_stream(client, "cam", image_options("gray8", 8, 8))
        reader = libmcpd.attach(client, "cam")
        libmcpd["close"](client)
        assert libmcpd["stream_ended"](stream) == libmcpd["stream_ended"](reader) == CLOSED
        assert libmcpd.next(reader)[0] in (-errno.EPIPE, -errno.ECANCELED)
        libmcpd["stream_close"](reader)
        libmcpd["stream_close"](stream)


def test_a_forked_child_is_refused(libmcpd: LibMcpd, bare_daemon: RunningDaemon) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    stream = libmcpd.create_stream(client, "cam", image_options("gray8", 8, 8))
    pid = os.fork()
    if pid == 0:  # no assertion here: it must not come back into pytest
        try:
            refused = False
            try:
                libmcpd.attach(client, "cam")
            except CError as error:
                refused = error.number == -errno.ECHILD
            writer = c_void_p(libmcpd["stream_writer"](stream))
            refused &= libmcpd["writer_acquire"](writer, 0) == -errno.ECHILD
            libmcpd["stream_close"](stream)
            libmcpd["close"](client)
            os._exit(0 if refused else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert libmcpd.publish(stream, b"still here") == 1
    libmcpd["stream_close"](stream)
    libmcpd["close"](client)


def test_signals_reach_the_program_and_not_the_library(
    libmcpd: LibMcpd, bare_daemon: RunningDaemon
) -> None:
    client = libmcpd.connect(bare_daemon.socket)
    masks = []
    for task in Path("/proc/self/task").iterdir():
        status = (task / "status").read_text()
        name = re.search(r"SigBlk:\s*(\w+)", status)
        assert name is not None
        masks.append(int(name[1], 16))
    blocking = [mask for mask in masks if mask >> (signal.SIGINT - 1) & 1]
    assert len(blocking) == 1  # the I/O thread
    libmcpd["close"](client)


def test_structs_are_those_of_the_headers(prefix: Path, tmp_path: Path) -> None:
    """What an FFI would declare, against what the compiler says."""
    structs = {
        "mcpd_error": 768,
        "mcpd_frame": 168,
        "mcpd_tensor_view": 192,
        "mcpd_stream_options": 264,
        "mcpd_reader_options": ctypes.sizeof(ReaderOptions),
        "mcpd_meta": ctypes.sizeof(Meta),
    }
    source = tmp_path / "sizes.c"
    prints = "".join(f'printf("%zu\\n", sizeof(struct {name}));' for name in structs)
    source.write_text(
        f"#include <mcpd_client.h>\n#include <stdio.h>\nint main(void) {{ {prints} }}\n"
    )
    binary = compile_program(prefix, tmp_path / "sizes", str(source))
    printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    assert dict(zip(structs, map(int, printed.split()), strict=True)) == structs
