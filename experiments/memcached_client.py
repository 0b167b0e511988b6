"""Fills a memcached over a Unix socket, or reads a hot tenth of its keys and prints the throughput."""

import random
import socket
import sys
import time

VALUE = 4096
BATCH = 16


def connect(path):
    for _ in range(200):
        try:
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(path)
            return stream
        except OSError:
            stream.close()
            time.sleep(0.1)
    sys.exit("memcached does not answer")


def fill(stream, keys):
    answers = stream.makefile("rb")
    # Values compress to about a half: random bytes, twice.
    pool = random.Random(2).randbytes(1 << 16)
    half = VALUE // 2
    for key in range(keys):
        at = key * 2654435761 % (len(pool) - half)
        value = pool[at : at + half] * 2
        stream.sendall(b"set key%012d 0 0 %d\r\n%s\r\n" % (key, VALUE, value))
        if answers.readline() != b"STORED\r\n":
            sys.exit("memcached does not take the keys")


def read(stream, keys, seconds):
    answers = stream.makefile("rb", buffering=1 << 18)
    choose = random.Random(1)
    one = len(b"VALUE key%012d 0 %d\r\n" % (0, VALUE)) + VALUE + 2
    hot = max(1, keys // 10)
    begun = time.monotonic()
    done = 0
    while (passed := time.monotonic() - begun) < seconds:
        names = (b"key%012d" % choose.randrange(hot) for _ in range(BATCH))
        stream.sendall(b"get " + b" ".join(names) + b"\r\n")
        answer = answers.read(one * BATCH + len(b"END\r\n"))
        if not answer.endswith(b"END\r\n"):
            sys.exit("memcached lost keys")
        done += BATCH
    print(f"throughput: {done / passed:.1f}")


if __name__ == "__main__":
    what, path, keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "fill":
        fill(connect(path), keys)
    else:
        read(connect(path), keys, float(sys.argv[4]))
