#!/usr/bin/env python3
"""Pans a window over a grey picture: raw video (I420) for an encoder, with motion to be found.

    pan.py PICTURE WIDTH HEIGHT FRAMES    (a raw picture of bytes, 1600 wide and 1000 high, as vips saves)
"""

import math
import sys

PICTURE_WIDTH, PICTURE_HEIGHT = 1600, 1000


def frames(picture, width, height, nr):
    grey = b"\x80" * (width * height // 2)
    for frame in range(nr):
        turn = 2 * math.pi * frame / nr
        left = round((PICTURE_WIDTH - width) / 2 * (1 + math.sin(turn)))
        top = round((PICTURE_HEIGHT - height) / 2 * (1 + math.cos(2 * turn)))
        for row in range(top, top + height):
            start = row * PICTURE_WIDTH + left
            yield picture[start : start + width]
        yield grey


def main():
    path, width, height, nr = sys.argv[1], *map(int, sys.argv[2:])
    with open(path, "rb") as file:
        picture = file.read()
    if len(picture) != PICTURE_WIDTH * PICTURE_HEIGHT:
        sys.exit(f"{path}: not {PICTURE_WIDTH} x {PICTURE_HEIGHT} bytes")
    for piece in frames(picture, width, height, nr):
        sys.stdout.buffer.write(piece)


if __name__ == "__main__":
    main()
