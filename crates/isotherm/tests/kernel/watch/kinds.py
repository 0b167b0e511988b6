"""Programs whose memory is easily reported wrongly: `kinds.py KIND`.

Each says with which process it has how many MiB, uses, does not use, and cannot be paged out of the unused, or `-`:
`ready PID RESIDENT USED IDLE KEPT`. What the interpreter has besides is what the kind `nothing` has.
"""

import ctypes
import mmap
import os
import signal
import sys
import tempfile
import threading
import time

MIB = 1 << 20
PAGE = 4096
SIZE, USED = 24 * MIB, 8 * MIB
libc = ctypes.CDLL(None, use_errno=True)
for name in ["mmap", "mremap", "shmat"]:
    getattr(libc, name).restype = ctypes.c_void_p


def check(result, what):
    if result in (-1, None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), what)
    return result


def anonymous(size=SIZE, flags=mmap.MAP_PRIVATE):
    return mmap.mmap(-1, size, flags=flags | mmap.MAP_ANONYMOUS)


def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def view(at, size):
    return (ctypes.c_char * size).from_address(at)


def fill(memory, start=0, end=SIZE):
    for at in range(start, end, PAGE):
        memory[at : at + 8] = os.urandom(8)
    return memory


def read(memory, start=0, end=SIZE, step=PAGE):
    for at in range(start, end, step):
        memory[at]


def ready(resident, used, idle, kept=0):
    pid = os.environ.get("OUTER_PID", os.getpid())
    numbers = ["-" if part is None else part // MIB for part in (resident, used, idle, kept)]
    print("ready", pid, *numbers, flush=True)


def use(memory, end=USED, step=PAGE):
    while True:
        read(memory, 0, end, step)
        time.sleep(0.02)


def protect(at, size, protection):
    check(libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(size), protection), "mprotect")


def nothing():
    ready(0, 0, 0)
    use(b"", 0)


def plain():
    memory = fill(anonymous())
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def reserved():
    """100 GiB of address space, of which a MiB in every 4 GiB is there."""
    none, reserve = 0, 0x4000
    at = libc.mmap(None, ctypes.c_size_t(100 << 30), 3, 0x22 | reserve, -1, ctypes.c_long(none))
    parts = [view(check(at, "mmap") + (part << 32), MIB) for part in range(24)]
    for part in parts:
        fill(part, 0, MIB)
    ready(SIZE, USED, SIZE - USED)
    while True:
        for part in parts[:8]:
            read(part, 0, MIB)
        time.sleep(0.02)


def mappings():
    """6,144 mappings of a page."""
    memory = fill(anonymous())
    for at in range(0, SIZE, 2 * PAGE):
        protect(address(memory) + at, PAGE, mmap.PROT_READ)
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def stopped():
    memory = fill(anonymous())
    ready(SIZE, 0, SIZE)
    os.kill(os.getpid(), signal.SIGSTOP)
    del memory


def mapped_thrice():
    file = os.memfd_create("heap")
    os.ftruncate(file, SIZE)
    maps = [mmap.mmap(file, SIZE) for _ in range(3)]
    fill(maps[0])
    for memory in maps:
        read(memory)
    ready(SIZE, USED, SIZE - USED, SIZE - USED)
    use(maps[2])


def locked():
    memory = fill(anonymous())
    check(libc.mlock(ctypes.c_void_p(address(memory)), ctypes.c_size_t(SIZE)), "mlock")
    ready(SIZE, USED, SIZE - USED, SIZE - USED)
    use(memory)


def locked_on_fault():
    memory = anonymous()
    check(libc.mlock2(ctypes.c_void_p(address(memory)), ctypes.c_size_t(SIZE), 1), "mlock2")
    fill(memory, 0, SIZE // 2)
    ready(SIZE // 2, USED, SIZE // 2 - USED, SIZE // 2 - USED)
    use(memory)


def shared_anonymous():
    memory = fill(anonymous(flags=mmap.MAP_SHARED))
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def file_in(folder):
    file, path = tempfile.mkstemp(dir=folder)
    # The program ends by a signal: the name must be gone before.
    os.unlink(path)
    return file


def of_file(folder, flags, protection):
    file = file_in(folder)
    os.write(file, os.urandom(SIZE))
    os.fsync(file)
    memory = mmap.mmap(file, SIZE, flags=flags, prot=protection)
    read(memory)
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def file_private():
    of_file("/var/tmp", mmap.MAP_PRIVATE, mmap.PROT_READ)


def file_shared():
    of_file("/var/tmp", mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def file_written_privately():
    file = file_in("/var/tmp")
    os.write(file, os.urandom(SIZE))
    memory = mmap.mmap(file, SIZE, flags=mmap.MAP_PRIVATE)
    fill(memory)
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def tmpfs():
    of_file("/dev/shm", mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def system_v():
    number = check(libc.shmget(0, ctypes.c_size_t(SIZE), 0o1600), "shmget")
    at = check(libc.shmat(number, None, 0), "shmat")
    libc.shmctl(number, 0, None)
    memory = fill(view(at, SIZE))
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def forked():
    """Its child has the same pages, and uses none of them."""
    memory = fill(anonymous())
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(0)
    ready(SIZE, USED, SIZE - USED, SIZE - USED)
    use(memory)


def lazily_freed():
    memory = fill(anonymous())
    memory.madvise(8, USED, SIZE - USED)
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def given_back():
    memory = fill(anonymous())
    memory.madvise(mmap.MADV_DONTNEED, USED, SIZE - USED)
    ready(USED, USED, 0)
    use(memory)


def protected():
    memory = fill(anonymous())
    protect(address(memory) + USED, SIZE - USED, 0)
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def paged_out():
    memory = fill(anonymous())
    memory.madvise(21, USED, SIZE - USED)
    ready(USED, USED, 0)
    use(memory)


def moved():
    memory = fill(anonymous())
    at = libc.mremap(ctypes.c_void_p(address(memory)), ctypes.c_size_t(SIZE), ctypes.c_size_t(1 << 30), 1)
    memory = view(check(at, "mremap"), SIZE)
    ready(SIZE, USED, SIZE - USED)
    use(memory)


def huge(step, used):
    at = libc.mmap(None, ctypes.c_size_t(SIZE + 2 * MIB), 3, 0x22, -1, ctypes.c_long(0))
    at = (check(at, "mmap") + 2 * MIB - 1) & ~(2 * MIB - 1)
    check(libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(SIZE), 14), "madvise")
    memory = view(at, SIZE)
    for page in range(0, SIZE, step):
        memory[page] = 1
    ready(SIZE, used, SIZE - used)
    use(memory, used, step)


def huge_pages():
    huge(PAGE, USED)


def sparse_huge_pages():
    huge(2 * MIB, USED)


def zero_pages():
    memory = anonymous()
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    read(memory)
    ready(0, 0, 0)
    use(memory)


def secret():
    file = check(libc.syscall(447, 0), "memfd_secret")
    os.ftruncate(file, SIZE)
    memory = fill(mmap.mmap(file, SIZE))
    ready(SIZE, USED, SIZE - USED, SIZE - USED)
    use(memory)


def ring_buffers():
    """io_uring pins its registered buffers: they are mapped as usual, and no page of them can be paged out."""
    memory = fill(anonymous())
    ring = check(libc.syscall(425, 4, ctypes.create_string_buffer(120)), "io_uring_setup")
    buffer = (ctypes.c_void_p * 2)(address(memory), SIZE)
    check(libc.syscall(427, ring, 0, buffer, 1), "io_uring_register")
    ready(SIZE, USED, SIZE - USED, SIZE - USED)
    use(memory)


def in_namespace():
    check(libc.unshare(0x20000000), "unshare")
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        libc.prctl(1, signal.SIGKILL)
        os.environ["OUTER_PID"] = os.read(told, 16).decode()
        os.execv(sys.executable, [sys.executable, sys.argv[0], "plain"])
    os.write(tell, str(pid).encode())
    os.waitpid(pid, 0)


def without_main_thread():
    memory = fill(anonymous())
    thread = threading.Thread(target=use, args=[memory])
    thread.start()
    ready(SIZE, USED, SIZE - USED)
    libc.syscall(60, 0)


def in_threads():
    """Each of eight threads uses a MiB of the heap that it has filled, with malloc's arenas."""

    def work(started):
        memory = ctypes.create_string_buffer(3 * MIB)
        fill(memory, 0, 3 * MIB)
        started.set()
        use(memory, MIB)

    for _ in range(8):
        started = threading.Event()
        threading.Thread(target=work, args=[started], daemon=True).start()
        started.wait()
    ready(SIZE, USED, SIZE - USED)
    time.sleep(600)


def rarely_used():
    """All of it is used, once a second: not in each interval."""
    memory = fill(anonymous())
    ready(SIZE, None, 0)
    while True:
        read(memory)
        time.sleep(1)


def executed():
    if len(sys.argv) < 3:
        os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
    plain()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
