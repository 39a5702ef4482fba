#!/bin/sh
# Makes the manual pages.
#
#   tools/manpages.sh PROGRAM PARTS DIRECTORY
#
# Names, synopses and options come from the program itself (--help=man), so a page cannot miss an option. PARTS has what is
# written by hand: NAME.scd for a command (description, examples, files) and tail.scd for the end of every page. Of NAME.scd,
# what is before the line "# EXAMPLES" goes before the options, the rest behind them. scdoc makes the pages.
set -eu

program=$1
parts=$2
out=$3

mkdir -p "$out"

# page NAME SOURCE: SOURCE on standard input, with NAME.scd woven in.
page() {
    hand=$parts/$1.scd
    [ -f "$hand" ] || hand=/dev/null
    awk -v hand="$hand" '
        function copy(wanted,    late, line) {
            while ((getline line < hand) > 0) {
                late = late || line == "# EXAMPLES"
                if (late == wanted) print line
            }
            close(hand)
            print ""
        }
        /^# (OPTIONS|COMMANDS)/ && !done { copy(0); done = 1 }
        { print }
        END { copy(1) }
    ' >"$out/$1.scd"
    cat "$parts/tail.scd" >>"$out/$1.scd"
}

finish() {
    scdoc <"$out/$1.scd" >"$out/$1.1"
    rm "$out/$1.scd"
}

"$program" --help=man | page carousel
finish carousel
"$program" --help=list | cut -f1 | while read -r command; do
    "$program" "$command" --help=man | page "carousel-$command"
    finish "carousel-$command"
done
