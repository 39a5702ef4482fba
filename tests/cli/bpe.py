#!/usr/bin/env python3
"""Byte-pair encoding once more, as plain as can be, to compare `carousel tokenize` with.

    bpe.py encode TOKENIZER.json TEXT TOKENS.bin     the file of tokens is what this encodes, and decodes to the text
    bpe.py train TEXT VOCABULARY TOKENIZER.json      the tokenizer is what this learns

Words are cut by the classes that Python's unicodedata has; merges are looked for anew in every word each time.
"""

import collections
import json
import struct
import sys
import unicodedata

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
SPACES = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def kind(character):
    if character in SPACES:
        return "space"
    category = unicodedata.category(character)[0]
    return {"L": "letter", "N": "number"}.get(category, "other")


def words(text):
    """What GPT-2's regular expression finds, one after the other."""
    at = 0
    while at < len(text):
        found = next((c for c in CONTRACTIONS if text.startswith(c, at)), None)
        if found:
            end = at + len(found)
        else:
            begin = at + (text[at] == " " and at + 1 < len(text) and kind(text[at + 1]) != "space")
            wanted, end = kind(text[begin]), begin
            while end < len(text) and kind(text[end]) == wanted:
                end += 1
            if wanted == "space" and end < len(text) and end - at > 1:
                end -= 1
        yield text[at:end]
        at = end


def alphabet():
    """The character that stands for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(hidden)}


LETTERS = alphabet()


def spell(word):
    return [LETTERS[byte] for byte in word.encode()]


def join(parts, pair):
    """All places where the pair stands, from the left."""
    out, i = [], 0
    while i < len(parts):
        both = tuple(parts[i : i + 2]) == pair
        out.append(parts[i] + parts[i + 1] if both else parts[i])
        i += 2 if both else 1
    return out


def encode_word(word, ranks):
    parts = spell(word)
    while True:
        pairs = [pair for pair in zip(parts, parts[1:]) if pair in ranks]
        if not pairs:
            return parts
        parts = join(parts, min(pairs, key=ranks.get))


def command_encode(tokenizer, text, tokens):
    with open(tokenizer, encoding="utf-8") as file:
        model = json.load(file)["model"]
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
    with open(text, encoding="utf-8", newline="") as file:
        content = file.read()
    known, expected = {}, []
    for word in words(content):
        if word not in known:
            known[word] = [model["vocab"][part] for part in encode_word(word, ranks)]
        expected += known[word]
    with open(tokens, "rb") as file:
        data = file.read()
    found = list(struct.unpack(f"<{len(data) // 2}H", data))
    if found != expected:
        at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
        sys.exit(f"{text}: token {at} of {len(found)} is {found[at:at + 4]}, expected {expected[at:at + 4]}")
    names = {number: name for name, number in model["vocab"].items()}
    bytes_of = {letter: byte for byte, letter in LETTERS.items()}
    back = bytes(bytes_of[letter] for token in found for letter in names[token])
    if back != content.encode():
        sys.exit(f"{text}: decoding does not give it back")
    print(f"{len(found)} tokens are the same")


def command_train(text, vocabulary, tokenizer):
    with open(text, encoding="utf-8", newline="") as file:
        counts = collections.Counter(words(file.read()))
    numbers = {letter: n for n, letter in enumerate(sorted(LETTERS.values()))}
    spelled, merges = {word: spell(word) for word in counts}, []
    while len(numbers) < int(vocabulary):
        pairs = collections.Counter()
        for word, parts in spelled.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += counts[word]
        # The most frequent; of equals the smaller left token, then the smaller right one.
        best = min(pairs, key=lambda pair: (-pairs[pair], numbers[pair[0]], numbers[pair[1]]))
        if pairs[best] < 2:
            break
        merges.append(" ".join(best))
        numbers.setdefault("".join(best), len(numbers))
        spelled = {word: join(parts, best) for word, parts in spelled.items()}
    with open(tokenizer, encoding="utf-8") as file:
        model = json.load(file)["model"]
    if model["merges"] != merges or model["vocab"] != numbers:
        at = next((i for i, (a, b) in enumerate(zip(model["merges"], merges)) if a != b), len(merges))
        sys.exit(f"merge {at} is {model['merges'][at:at + 1]}, expected {merges[at:at + 1]}")
    print(f"{len(merges)} merges are the same")


globals()[f"command_{sys.argv[1]}"](*sys.argv[2:])
