#!/usr/bin/env python3
"""Makes unicode_tables.inc: `python3 unicode_tables.py >unicode_tables.inc`, from the module unicodedata2 of the package
index if it is there (newer Unicode), else from unicodedata."""
try:
    import unicodedata2 as unicode
except ImportError:
    import unicodedata as unicode

CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co").split()
LAST = 0x110000
HANGUL = range(0xAC00, 0xD7A4)  # composed by arithmetic


def table(comment, kind, name, values):
    print(f"/* {comment} */\nstatic const {kind} {name}[] = {{")
    line = "   "
    for v in values:
        if len(line) + len(v) + 2 > 118:
            print(line)
            line = "   "
        line += f" {v},"
    print(line + "\n};\n")


def runs(value):
    """The code points at which the value changes, with the value."""
    before = None
    for c in range(LAST):
        v = value(c)
        if v != before:
            yield c, v
        before = v


def decomposed(c, compatible):
    text = unicode.decomposition(chr(c))
    if not text or c in HANGUL or text.startswith("<") != compatible:
        return None
    return [int(x, 16) for x in text.split() if not x.startswith("<")]


print(f"/* Unicode {unicode.unidata_version}; made by unicode_tables.py. */\n")
table("Runs of code points of one general category: first << 8 | category.", "uint32_t", "unicode_category_runs",
      [f"{c << 8 | v:#x}" for c, v in runs(lambda c: CATEGORIES.index(unicode.category(chr(c))))])
table("Runs of one canonical combining class: first << 8 | class.", "uint32_t", "unicode_class_runs",
      [f"{c << 8 | v:#x}" for c, v in runs(lambda c: unicode.combining(chr(c)))])

# Primary composites: (first, second) -> c, where composing gives c back.
pairs = []
for c in range(LAST):
    d = decomposed(c, False)
    if d:
        second = d[1] if len(d) == 2 else 0
        back = len(d) == 2 and unicode.normalize("NFC", chr(c)) == chr(c)
        pairs.append((c, d[0], second, back))
table("Canonical decompositions by code point: it, what it becomes (second 0: one code point), 1: it is composed again.",
      "struct unicode_pair", "unicode_pairs", [f"{{{c:#x}, {a:#x}, {b:#x}, {int(back)}}}" for c, a, b, back in pairs])
order = sorted((a, b, i) for i, (c, a, b, back) in enumerate(pairs) if back)
table("Those that are composed, by what they consist of: indices of unicode_pairs.", "uint16_t", "unicode_composed",
      [str(i) for a, b, i in order])

starts, texts = [], []
for c in range(LAST):
    d = decomposed(c, True)
    if d:
        starts.append((c, len(texts), len(d)))
        texts += d
table("Compatibility decompositions: code point, then start << 8 | length in unicode_compatible_text.",
      "uint32_t", "unicode_compatible", [f"{c:#x}, {s << 8 | n:#x}" for c, s, n in starts])
table("What they become.", "uint32_t", "unicode_compatible_text", [f"{c:#x}" for c in texts])

# Lower case: ranges first to last, each `step` code points, whose lower case is `delta` away.
ranges = []
for c in range(LAST):
    low = chr(c).lower()
    if low == chr(c) or len(low) != 1:
        continue
    d = ord(low) - c
    if ranges and ranges[-1][3] == d and c - ranges[-1][1] in (1, 2) and (
            ranges[-1][0] == ranges[-1][1] or ranges[-1][2] == c - ranges[-1][1]):
        ranges[-1][2] = c - ranges[-1][1]
        ranges[-1][1] = c
    else:
        ranges.append([c, c, 1, d])
table("Upper-case characters whose lower case is `delta` away: first, last, step, delta.", "struct unicode_case",
      "unicode_lower", [f"{{{a:#x}, {b:#x}, {s}, {d}}}" for a, b, s, d in ranges])
