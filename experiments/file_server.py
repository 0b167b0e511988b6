"""Files for a server of files: makes them, or reads them by Zipf's law and prints how many bytes a second.

    file_server.py make FOLDER MIB        files of 256 KiB
    file_server.py serve FOLDER SECONDS

Each file is read through the page cache by read(2), and nothing is done with it: the popular ones stay there, the
others come from disk once and are cold from then on.
"""

import os
import random
import sys
import time

FILE = 256 << 10


def make(folder, mib):
    os.mkdir(folder)
    noise = random.Random(1).randbytes(FILE)
    for number in range(mib * (1 << 20) // FILE):
        at = number * 4093 % FILE
        with open(f"{folder}/{number}", "wb") as file:
            file.write(noise[at:] + noise[:at])


def serve(folder, seconds):
    nr = len(os.listdir(folder))
    # All of them once, as a backup or an index does.
    for number in range(nr):
        read(folder, number)
    choose = random.Random(2)
    begun = time.monotonic()
    done = 0
    while (passed := time.monotonic() - begun) < seconds:
        for _ in range(16):
            # Zipf's law, exponent 1, over all of them; the popular ones anywhere among the others.
            done += read(folder, int(nr ** choose.random()) * 7919 % nr)
    print(f"throughput: {done / passed / (1 << 20):.1f}")


def read(folder, number):
    file = os.open(f"{folder}/{number}", os.O_RDONLY)
    try:
        return len(os.read(file, FILE))
    finally:
        os.close(file)


if __name__ == "__main__":
    what, folder, amount = sys.argv[1:]
    if what == "make":
        make(folder, int(amount))
    else:
        serve(folder, float(amount))
