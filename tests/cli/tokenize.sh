#!/usr/bin/env bash
# carousel tokenize: what it writes and says, and the same tokens as a plain implementation of BPE finds (bpe.py, if there
# is a python3), on Shakespeare and on characters of all sorts. CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")" && pwd)
shakespeare=${CAROUSEL_TINYSHAKESPEARE:-$here/../../../shared/data/tinyshakespeare.txt}
cd "$directory" || exit 1

for i in $(seq 200); do echo "line $i of a text, it's made up: $((i * i)) words they've said"; done >text

# ---- what is written

expect 0 "of a vocabulary of 300" tokenize text -o text.bin --vocabulary 300
expect 0 '"vocabulary":	300' tokenize text -o text.bin --vocabulary 300 --json
[ -s text.tokenizer.json ] || fail "there is no tokenizer beside the tokens"
cp text.bin first.bin && expect 0 "" tokenize text -o text.bin --vocabulary 300 && cmp -s text.bin first.bin ||
    fail "the same text gave other tokens"
expect 0 "of a vocabulary of 300" tokenize text -o again.bin --tokenizer text.tokenizer.json
cmp -s text.bin again.bin || fail "a given tokenizer gave other tokens"
expect 0 "tokens" tokenize text -o headed.bin --tokenizer text.tokenizer.json --header
[ $(($(stat -c %s headed.bin) - $(stat -c %s text.bin))) = 1024 ] || fail "llm.c's header has not 1024 bytes"
count=$(($(stat -c %s text.bin) / 2))
expect 0 "training    $((count - count / 10)) tokens" data info tokens:headed.bin
expect 0 "no pair of tokens is left that occurs twice" tokenize text -o all.bin --vocabulary 60000

# ---- what is refused, leaving nothing behind

expect 2 "must end in .bin" tokenize text -o text.tokens
expect 2 "TEXT, the file to tokenize, is missing" tokenize -o x.bin
expect 2 "-o FILE.bin is missing" tokenize text
expect 2 "must be used together" tokenize text -o x.bin --merges m
expect 2 "use only one of --vocabulary" tokenize text -o x.bin --vocabulary 300 --tokenizer text.tokenizer.json
expect 2 "from 256 to 65536" tokenize text -o x.bin --vocabulary 100
expect 1 "No such file" tokenize absent -o x.bin
expect 1 "not a JSON object" tokenize text -o x.bin --tokenizer text
: >empty
expect 1 "is empty" tokenize empty -o x.bin
[ ! -e x.bin ] && [ ! -e x.tokenizer.json ] || fail "a refused call left files"

# ---- training takes the vocabulary from there, and keeps the tokenizer

train=(train --model gpt2-nano --width 16 --depth 1 --heads 2 --seq-len 16 --workers 2 --batch 2 --steps 2 --eval-batches 1)
expect 0 "done after 2 steps" "${train[@]}" --data tokens:text.bin --out run
cmp -s run/tokenizer.json text.tokenizer.json || fail "the run has not the tokenizer of its data"
grep -q '"vocabulary":	300' run/config.json || fail "the run has not the vocabulary of the tokenizer"
expect 0 "perplexity" eval run
expect 1 "vocabulary ends at 279; use a model with a larger vocabulary" "${train[@]}" --data tokens:text.bin --vocabulary 280
mv text.tokenizer.json hidden.json
expect 1 "vocabulary ends at 255" "${train[@]}" --data tokens:text.bin
expect 0 "done after 2 steps" "${train[@]}" --data tokens:text.bin --vocabulary 320 --out wide
[ ! -e wide/tokenizer.json ] || fail "a tokenizer came from nowhere"
expect 1 "give --tokenizer FILE" generate wide --prompt line
expect 0 "line" generate wide --prompt line --tokens 3 --tokenizer hidden.json
expect 0 "resuming after step 2" train --out run --resume --steps 3
expect 2 "is not a multiple of the number of heads, 3" "${train[@]}" --data tokens:text --heads 3
expect 0 "parameters" plan --model gpt2-nano --workers 2 --heads 3 --vocabulary 1000

# ---- another implementation

if ! command -v python3 >/dev/null; then
    echo "SKIPPED: there is no python3 to compare with" >&2
    finish
fi
bpe() { PYTHONDONTWRITEBYTECODE=1 python3 "$here/bpe.py" "$@" || fail "bpe.py $*"; }
python3 - <<'END'
import random
random.seed(5)
pools = [range(32, 127), range(0x300), range(0x300, 0x3000), range(0x3000, 0x9FFF), range(0x1F300, 0x1F650),
         [32, 32, 32, 10, 9, 0x85, 0xA0, 0x2003, 0x3000, 0x200B, 0xFEFF, 0x2028], [ord(c) for c in "'strevmld 's"],
         range(0x2150, 0x2189), range(0x660, 0x66A)]
text = "".join(chr(random.choice(random.choice(pools))) for _ in range(30000)) + "a" * 300 + " " * 200 + "\n\n x"
open("nasty", "w", encoding="utf-8", newline="").write(text)
END
expect 0 "tokens" tokenize nasty -o nasty.bin --vocabulary 700
bpe encode nasty.tokenizer.json nasty nasty.bin
expect 0 "tokens" tokenize text -o learnt.bin --vocabulary 400
bpe train text 400 learnt.tokenizer.json
if [ -f "$shakespeare" ]; then
    expect 0 "of a vocabulary of 1024" tokenize "$shakespeare" -o shakespeare.bin --vocabulary 1024
    bpe encode shakespeare.tokenizer.json "$shakespeare" shakespeare.bin
else
    echo "SKIPPED: there is no $shakespeare" >&2
fi
finish
