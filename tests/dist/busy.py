"""Touches all of 64 MiB, 20 times a second, until it is ended, or for ten minutes. Makes the file named once it does so."""

import pathlib
import sys
import time

memory = bytearray(64 << 20)
until = time.monotonic() + 600
while time.monotonic() < until:
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(0.05)
