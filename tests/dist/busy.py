"""Touches all of 64 MiB, 20 times a second, until it is ended, or for ten minutes."""

import time

memory = bytearray(64 << 20)
until = time.monotonic() + 600
while time.monotonic() < until:
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    time.sleep(0.05)
