#!/usr/bin/env bash
# An operator's way with the program alone: ranks in one process on real images, kills and signals, TensorBoard's files, a
# report that follows the run, the progress line, manual pages, completion. CAROUSEL names the program. The images are some
# of CIFAR-10, from CAROUSEL_CIFAR10_JPEG (a folder with train and test) or ../shared/data; without them, synthetic.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/../cli/common.sh"

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
images=$root/../shared/data/cifar10-jpeg.tar.gz
cd "$directory" || exit 1

data=synthetic
if [ -n "${CAROUSEL_CIFAR10_JPEG:-}" ]; then
    data=imagefolder:$CAROUSEL_CIFAR10_JPEG
elif [ -r "$images" ]; then
    mkdir cifar10
    tar -xzf "$images" -C cifar10 --wildcards 'train/*/00[0-4]*.jpg' 'test/*/000*.jpg' && data=imagefolder:cifar10
fi
[ "$data" = synthetic ] && echo "SKIPPED: CIFAR-10 is not at $images, so the images are synthetic" >&2

digest() { sed -n 's/.*"weights_sha256":[^"]*"\([0-9a-f]*\)".*/\1/p' "$1/summary.json"; }
steps_of() { cat "$1/metrics.jsonl" 2>/dev/null | wc -l; }
# await RUN STEPS: until the run in the background has made so many.
await() {
    while [ "$(steps_of "$1")" -lt "$2" ] && kill -0 "$runner" 2>/dev/null; do sleep 0.02; done
}
# begin OPTIONS...: a run in the background; sets `runner`.
begin() {
    "$CAROUSEL" train --out run "$@" >>log 2>&1 &
    runner=$!
}

# ---- a pipeline of two ranks in one process: killed, resumed, asked to stop, resumed ----

options=(--model resnet20 --image-size 16 --data "$data" --placement pipeline --workers 2 --threads 1 --batch 4 --steps 60
    --lr 0.05 --checkpoint-every 10 --eval-every 30 --eval-batches 4 --tensorboard --clip-norm 5)
[ "$data" = synthetic ] && options+=(--classes 10)
"$CAROUSEL" train "${options[@]}" --out whole >whole.log 2>&1 || fail "train: $(tail -n 2 whole.log)"
grep -q 'activations of rank 0 .* MB, peak .* MB (plan: .* MB)' whole.log || fail "no memory beside the plan's: $(tail -n 3 whole.log)"

begin "${options[@]}" --step-seconds 0.05
await run 14
"$CAROUSEL" report --live run --every 0.2 >live.log 2>&1 &
reporter=$!
await run 20
kill -KILL $runner
wait $runner 2>/dev/null
wait $reporter || fail "the live report failed: $(cat live.log)"
grep -q 'the page is final' live.log || fail "the live report did not say that the run is over: $(cat live.log)"
[ -s run/report.html ] || fail "the live report wrote no page"
grep -q '"reload_seconds"' run/report.html && fail "the page of a run that was killed still loads itself again"

begin --resume
await run 36
kill -USR1 $runner
wait $runner
[ $? = 4 ] || fail "SIGUSR1 did not end the run with 4: $(tail -n 2 log)"
begin --resume
wait $runner || fail "--resume: $(tail -n 2 log)"
[ "$(grep -c '^resuming after step' log)" = 2 ] || fail "the run was not resumed twice: $(cat log)"
[ "$(digest run)" = "$(digest whole)" ] || fail "killed and stopped, the run has other weights"
[ "$(steps_of run)" = 60 ] || fail "metrics.jsonl has $(steps_of run) lines"

# ---- TensorBoard's files ----

if command -v python3 >/dev/null; then
    python3 -B "$here/events.py" run 3 >events.log 2>&1 || fail "event files: $(tail -n 3 events.log)"
    printf 'x' | dd of="$(ls run/events.out.tfevents.* | head -n 1)" bs=1 seek=40 conv=notrunc 2>/dev/null
    python3 -B "$here/events.py" run 3 >/dev/null 2>&1 && fail "a damaged event file was not noticed"
fi
expect 2 "--tensorboard requires --out" train --model mlp --steps 1 --tensorboard

# ---- a report that is told to stop while the run goes on ----

"$CAROUSEL" train --model mlp --lr 0.001 --workers 2 --steps 1000000 --out long >/dev/null 2>&1 &
runner=$!
await long 3
"$CAROUSEL" report --live long -o page.html --every 0.1 >live.log 2>&1 &
reporter=$!
for _ in $(seq 100); do [ -s page.html ] && break; sleep 0.05; done
grep -q '"reload_seconds":0.1' page.html || fail "a live page does not load itself again"
kill -INT $reporter
wait $reporter || fail "Ctrl-C: the live report failed"
grep -q 'the run goes on' live.log || fail "Ctrl-C: $(cat live.log)"
grep -q '"reload_seconds"' page.html && fail "the last page still loads itself again"
kill -TERM $runner
wait $runner

# ---- the line on a terminal ----

if command -v script >/dev/null; then
    TERM=xterm script -qec "stty cols 160; $CAROUSEL train --model mlp --width 32 --batch 2 --steps 30" typescript >/dev/null 2>&1
    grep -aq '\[=* *\] *100%  step 30/30  loss .* samples/s  0:00 left' typescript || fail "no bar: $(tail -c 300 typescript)"
fi

# ---- the demo, with too few steps to learn anything: every part comes out, and nothing is left behind ----

mkdir temporary
TMPDIR=$directory/temporary "$CAROUSEL" demo --steps 10 >demo.log 2>&1 || fail "the demo failed: $(tail -n 3 demo.log)"
for rule in gpipe 1f1b cdp-v2; do
    grep -qE -- "^   --rule $rule +[0-9.]+ +[0-9]+ %$" demo.log || fail "the demo's pipeline lacks $rule: $(cat demo.log)"
done
for rule in dp cdp-v2 accumulate; do
    [ "$(grep -cE -- "^   --rule $rule .*(MB|%)$" demo.log)" -ge 2 ] || fail "the demo lacks memory or loss of $rule: $(cat demo.log)"
done
grep -q '^This machine has [0-9]* core' demo.log || fail "the demo ends without advice"
[ -z "$(ls temporary)" ] || fail "the demo left $(ls temporary)"

# ---- completion ----

# complete WORDS...: what is offered for the last of them.
complete_words() {
    PATH=$(dirname "$CAROUSEL"):$PATH bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _carousel; echo "${COMPREPLY[@]}"' \
        _ "$root/tools/carousel.bash" carousel "$@"
}
offers() { # TEXT WORDS...
    local text=$1 offered
    shift
    offered=$(complete_words "$@")
    [[ " $offered " == *" $text "* ]] || fail "completing '$*' offers: $offered"
}
if [ "$(basename "$CAROUSEL")" = carousel ]; then
    offers train tr
    offers --tensorboard train --ten
    offers cdp-v2 train --rule cdp
    offers pipeline train --model mlp --placement p
    offers resnet20 eval --model res
    offers info data ""
    offers --json data info --j
    offers --rule launch -n 2 -- train --ru
    offers log train --config lo
fi

# ---- manual pages: each names every option that --help shows ----

if command -v scdoc >/dev/null; then
    sh "$root/tools/manpages.sh" "$CAROUSEL" "$root/docs/man" man || fail "the manual pages could not be made"
    read_page() { man -l "$1" 2>/dev/null || cat "$1"; }
    "$CAROUSEL" --help=list | cut -f1 >commands
    looked=0
    while read -r command; do
        [ -s "man/carousel-$command.1" ] || fail "there is no manual page of carousel $command"
        MANWIDTH=200 read_page "man/carousel-$command.1" | { col -b 2>/dev/null || cat; } >page.txt
        "$CAROUSEL" "$command" --help | sed -n 's/^  \(--[a-z0-9-]*\) .*/\1/p' | grep -v '^--help$' >expected
        while read -r option; do
            sed 's/\\-/-/g' page.txt | grep -q -- "$option" || fail "the page of $command lacks $option"
            looked=$((looked + 1))
        done <expected
    done <commands
    [ $looked -gt 50 ] || fail "only $looked options were looked for"
else
    echo "SKIPPED: there is no scdoc, so no manual page was made" >&2
fi

finish
