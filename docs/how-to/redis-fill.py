"""Commands that fill redis with 50,000 hashes and a sorted set, as `redis-cli --pipe` takes them. For docs/how-to/blame.md."""

import sys


def command(*words: str) -> str:
    """One command, in redis' protocol."""
    return f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)


VALUE = "x" * 100
for i in range(50_000):
    sys.stdout.write(command("HSET", f"user:{i}", "name", VALUE, "mail", VALUE))
for i in range(200_000):
    sys.stdout.write(command("ZADD", "scores", str(i), f"member:{i}"))
