#!/usr/bin/env bash
# From a text to a sentence, as docs/data.md tells it, with the program alone: tokenize, train, evaluate, generate,
# export, and generate from what was exported. The commands between the marks in docs/data.md are run as they stand
# there, but for the number of steps. CAROUSEL names the program; needs tinyshakespeare.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/../cli/common.sh"
here=$(cd "$(dirname "$0")" && pwd)
shakespeare=${CAROUSEL_TINYSHAKESPEARE:-$here/../../../shared/data/tinyshakespeare.txt}
if [ ! -f "$shakespeare" ]; then
    echo "SKIPPED: there is no $shakespeare; CAROUSEL_TINYSHAKESPEARE may name one" >&2
    exit 77
fi
shakespeare=$(cd "$(dirname "$shakespeare")" && pwd)/$(basename "$shakespeare")
cd "$directory" || exit 1
ln -s "$shakespeare" shakespeare.txt

# ---- the commands of the documentation

sed -n '/^<!-- from a text to a sentence -->$/,/^<!-- \/from a text to a sentence -->$/p' "$here/../../docs/data.md" |
    sed -n '/^```$/,/^```$/p' | sed '/^```$/d; s/ *#.*$//' >commands
[ "$(wc -l <commands)" -ge 6 ] || fail "docs/data.md has lost its commands"
number=0
while IFS= read -r line; do
    number=$((number + 1))
    case $line in carousel\ *) ;; *) fail "what is this: $line" ;; esac
    line=$(sed 's/--steps [0-9]*/--steps 60/' <<<"$line")
    eval "\"\$CAROUSEL\" ${line#carousel}" >"$number.log" 2>"$number.err" </dev/null || fail "$line: $(cat "$number.err")"
done <commands

# said NUMBER TEXT: what the command of this number printed has the text in it.
said() { grep -qF -- "$2" "$1.log" || fail "command $1, '$(sed -n "$1p" commands)': '$2' is not in: $(tail -n 5 "$1.log")"; }

# tokenize
said 1 "459792 tokens of a vocabulary of 1024, 2.43 bytes each; tokenizer in shakespeare.tokenizer.json"
[ "$(stat -c %s shakespeare.bin)" = $((2 * 459792)) ] || fail "shakespeare.bin has not two bytes a token"
# train
said 2 "done after 60 steps"
cmp -s shakespeare.tokenizer.json play/tokenizer.json || fail "the run has not the tokenizer of its data"
grep -q '"vocabulary":	1024' play/config.json || fail "the run has not the vocabulary of its data"
first=$(sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' play/metrics.jsonl | head -n 1)
awk -v first="$first" 'BEGIN { exit !(first > 6.8 && first < 7.1) }' || fail "the first loss is $first, not about ln(1024)"
# eval
said 3 "perplexity"
perplexity=$(sed -n 's/.*perplexity \([0-9.]*\),.*/\1/p' 3.log)
awk -v p="$perplexity" 'BEGIN { exit !(p > 20 && p < 500) }' || fail "a perplexity of $perplexity after 60 steps"
grep -q "\"perplexity\": ${perplexity%.*}" play/evaluations.jsonl || fail "evaluations.jsonl has not the perplexity $perplexity"
grep -q "\"perplexity\":	${perplexity%.*}" play/summary.json || fail "summary.json has not the perplexity $perplexity"
# generate, export, generate
said 4 "ROMEO:"
[ "$(wc -c <4.log)" -gt 100 ] || fail "hardly anything was generated: $(cat 4.log)"
said 5 "GPT-2 with"
for file in config.json model.safetensors tokenizer.json vocab.json merges.txt tokenizer_config.json; do
    [ -s "play-hf/$file" ] || fail "the export has no $file"
done
cmp -s 4.log 6.log || fail "the export generates something else: $(diff 4.log 6.log)"
# report
grep -qE '"perplexity": ?[0-9.]+' play.html || fail "the page has no perplexity"

# ---- the best weights are used, as in eval

cp play/weights.safetensors play/best.safetensors
expect 0 "using play/best.safetensors" generate play --prompt "To be" --tokens 2
rm play/best.safetensors

# ---- more ways to generate

generate() { "$CAROUSEL" generate play --tokens 20 "$@" </dev/null || fail "generate $*"; }
generate --prompt "To be" --seed 7 >a
generate --prompt "To be" --seed 7 --threads 1 >b
generate --prompt "To be" --seed 8 >c
cmp -s a b || fail "one thread generates something else"
cmp -s a c && fail "the seed does not matter"
echo -n "To be" | "$CAROUSEL" generate play --tokens 20 --prompt - --seed 7 | cmp -s - a || fail "a prompt from standard input is another"
generate --prompt "To be" --top-k 1 >d
generate --prompt "To be" --temperature 0 >e
generate --prompt "To be" --top-p 0.000001 >f
cmp -s d e && cmp -s e f || fail "the likeliest token is not always the same"
expect 0 '"ended_by":	"tokens"' generate play --prompt "To be" --tokens 5 --json
expect 0 "context of 128 tokens is full" generate play --prompt "To be" --tokens 500
expect 0 "trained on sequences of 64 tokens" generate play --prompt "To be" --tokens 80
expect 2 "give a --prompt" generate play
expect 2 "use a shorter prompt" generate play --prompt "$(head -c 2000 shakespeare.txt)"
expect 0 "To be" generate play/checkpoints/step-00000060 --prompt "To be" --tokens 2
expect 0 "To be" generate play-hf/model.safetensors --prompt "To be" --tokens 2
rm -r play-hf/vocab.json play-hf/config.json
expect 2 "give --heads N" generate play-hf --prompt "To be"
expect 0 "To be" generate play-hf --heads 4 --prompt "To be" --tokens 2
expect 1 "already exists" export play -o play-hf
mkdir empty && expect 0 "GPT-2 with" export play -o empty/ && [ -s empty/config.json ] || fail "an empty folder is not filled"
expect 1 "No such file" generate absent --prompt x
expect 2 "RUN is missing" generate --prompt x
expect 1 "not a safetensors file" generate shakespeare.bin --prompt x --heads 4

finish
