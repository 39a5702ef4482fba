#!/usr/bin/env bash
# carousel report as its user runs it: pages of real runs, and what can be wrong with them. What is in a page is
# unit.report_page's business, how it looks report.page's. CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
cd "$directory" || exit 1

for rule in dp cdp-v2; do
    "$CAROUSEL" train --model mlp --rule $rule --steps 12 --batch 4 --eval-every 6 --keep 0 --out $rule >/dev/null 2>&1 ||
        fail "train --rule $rule"
done

# ---- help, and what is typed wrongly

expect 0 "usage: carousel report RUN_DIR... -o FILE.html" report --help
expect 0 "write an HTML page about runs" --help
expect 2 "RUN_DIR... is missing" report
expect 2 "RUN_DIR... is missing" report -o page.html
expect 2 "-o FILE.html is missing" report dp
expect 2 "--output requires a value" report dp -o
expect 2 "there is no option --open" report dp -o page.html --open
expect 1 "nothing: cannot open: No such file or directory" report dp nothing -o page.html
expect 2 "is not a directory" report dp/summary.json -o page.html
expect 1 "nowhere/page.html" report dp -o nowhere/page.html
[ ! -e page.html ] || fail "a report that failed left a page"

# ---- pages

expect 0 "page.html: 1 run, " report dp -o page.html
grep -qF '<title>dp</title>' page.html || fail "a page is not called after its run"
expect 0 "2 runs" report dp cdp-v2/ --output page.html --title 'Two & <more>'
grep -qF '<title>Two &amp; &lt;more&gt;</title>' page.html || fail "the title is not in the page"
grep -qF '"name":"cdp-v2"' page.html || fail "the second run is not in the page"
# Nothing is asked for from anywhere.
! grep -qE '(src|href)="?(https?:|//)|@import|url\(' page.html || fail "the page asks for something from elsewhere"

rm cdp-v2/config.json
expect 0 "note: cdp-v2: config.json is missing" report cdp-v2 -o page.html
grep -qF 'config.json is missing' page.html || fail "the page does not say that config.json is missing"

# ---- damaged lines are left out, and said

sed '$d' dp/evaluations.jsonl >short && cp -r dp damaged
printf '{"step": 3, "loss": ,}\nnull\n{"step": 12, "loss": 1}\n' >>damaged/metrics.jsonl
printf '\0\0\0\n' | cat short - >damaged/evaluations.jsonl
expect 0 "note: damaged: metrics.jsonl has 2 damaged lines, left out; the first is line 13" report damaged -o page.html
expect 0 "note: damaged: evaluations.jsonl has 1 damaged line, left out; the first is line 2" report damaged -o page.html
grep -qF 'metrics.jsonl has 2 damaged lines' page.html || fail "the page does not say which lines were left out"
grep -qF '"lines":13,' page.html || fail "the lines behind the damaged ones are not in the page"

# ---- what is damaged is named, and the page that there was stays

cp page.html before.html
echo '{"model": "mlp"' >dp/summary.json
expect 1 "dp/summary.json:1:16: not valid JSON, or cut short" report dp -o page.html
cmp -s page.html before.html || fail "a report that failed changed the page"
rm dp/summary.json
expect 0 "note: dp: summary.json is missing" report dp -o page.html

finish
