"""Damage to files: flipped bits, cut and repeated pieces, and words that parsers stumble over."""

from __future__ import annotations

from random import Random

NASTY = (
    b"../../../../etc/passwd",
    b"/etc/passwd",
    b"..",
    b"\\\\..\\..\\x",
    b"C:\\x",
    b"\0",
    b"\xff\xfe",
    b"\xf0\x9f\x92\xa9",
    b"-1",
    b"99999999999999999999999",
    b"1e309",
    b"nan",
    b"9" * 5000,
    b"[" * 1200,
    b"{" * 1200,
    b"\n",
    b"\r",
    b" ",
    b",",
    b'"',
    b"'",
    b"=",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    b"\x00" * 16,
    b"cos\nsystem\n(S'true'\ntR.",
    b"cbuiltins\neval\n(S'1'\ntR.",
)


def mutate(content: bytes, random: Random, others: tuple[bytes, ...] = ()) -> bytes:
    """A few random changes."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 5, 8))):
        _change(data, random, others)
    return bytes(data)


def _change(data: bytearray, random: Random, others: tuple[bytes, ...]) -> None:
    size = len(data)
    kind = random.randrange(10)
    place = random.randrange(size) if size else 0
    length = min(random.choice((1, 2, 4, 8, 32, 200)), size - place) if size else 0
    if kind <= 2 and size:
        data[place] ^= 1 << random.randrange(8)
    elif kind == 3 and size:
        data[place] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    elif kind == 4:
        del data[place : place + length]
    elif kind == 5:
        data[place:place] = data[place : place + length] * random.choice((1, 2, 50))
    elif kind == 6:
        del data[place:]
    elif kind == 7:
        data[place : place + random.choice((0, length))] = random.choice(NASTY)
    elif kind == 8 and others:
        other = random.choice(others)
        start = random.randrange(len(other)) if other else 0
        data[place : place + length] = other[start : start + random.choice((1, 8, 64, 400))]
    elif size:
        data[place : place + length] = random.randbytes(length)
