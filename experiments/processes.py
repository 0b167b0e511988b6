#!/usr/bin/env python3
"""Many processes that each have some memory, of which every fourth writes a tenth at random all the time, for docs/results/accuracy.md.

    python3 experiments/processes.py NUMBER MIB SECONDS
"""
import os
import random
import sys
import time

number, mib, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
children = []
for i in range(number):
    child = os.fork()
    if child == 0:
        memory = bytearray(os.urandom(1 << 20)) * mib
        draw = random.Random(i)
        while True:
            if i % 4 == 0:
                for _ in range(200):
                    memory[draw.randrange(len(memory) // 10)] = 1
            time.sleep(0.05)
    children.append(child)
print("ready", flush=True)
try:
    time.sleep(seconds)
finally:
    for child in children:
        os.kill(child, 9)
