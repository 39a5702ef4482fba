#!/usr/bin/env bash
# carousel data as its user runs it: what it finds, packing, and everything that can go wrong on a disk.
# CAROUSEL names the program.
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
jpegs=$(cd "$(dirname "$0")/../fuzz/corpus/jpeg" && pwd)
trap 'umount "$directory/small" 2>/dev/null; chmod -R u+rwx "$directory"; rm -rf "$directory"' EXIT
cd "$directory" || exit 1

# record LABEL VALUE: one of CIFAR's records, 3072 bytes of the same value.
record() {
    # shellcheck disable=SC2059 # the escapes are the point
    printf "$(printf '\\%03o' "$1")"
    head -c 3072 /dev/zero | tr '\000' "$(printf '\\%03o' "$2")"
}

mkdir cifar
{ record 0 0 && record 9 255 && record 3 0 && record 3 255; } >cifar/data_batch_1.bin
record 1 128 >cifar/test_batch.bin
printf 'airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n' >cifar/batches.meta.txt

# The first byte of these inputs belongs to the fuzz target.
mkdir -p folder/train/cat folder/train/dog folder/val/cat
for name in rgb grey cmyk progressive; do tail -c +2 "$jpegs/$name" >"folder/train/cat/$name.jpg"; done
tail -c +2 "$jpegs/rgb" >folder/train/dog/a.jpg
tail -c +2 "$jpegs/cut" >folder/train/dog/cut.jpg
echo "no image" >folder/train/dog/text.jpg
tail -c +2 "$jpegs/rgb" >folder/val/cat/a.jpg

printf 'to be or not to be, that is the question\n' >text.txt

# ---- help, and what is typed wrongly

expect 0 "usage: carousel data info D" data --help
expect 0 "usage: carousel data info D [--json]" data info --help
expect 0 "usage: carousel data pack D -o FILE" data pack --help
expect 0 "--size X" data pack --help
expect 0 "inspect a dataset" --help
expect 2 "usage: carousel data info D" data
expect 2 "there is no command 'inof'" data inof cifar10:cifar
expect 2 "the dataset D is missing. D is cifar10:DIR" data info
expect 2 "there is no option --jsno" data info cifar10:cifar --jsno
expect 2 "'cifar10:other' is not an option" data info cifar10:cifar cifar10:other
expect 2 "-o FILE is missing" data pack cifar10:cifar
expect 2 "the dataset D is missing" data pack -o file
expect 2 "--size 0" data pack cifar10:cifar -o file --size 0
expect 2 "--size requires a value" data pack cifar10:cifar -o file --size
expect 2 "there is no data 'cifra10:cifar'" data info cifra10:cifar
expect 2 "has no path" data info tokens

# ---- what is found

expect 0 "training    4 images" data info cifar10:cifar
expect 0 "evaluation  1 images" data info cifar10:cifar
expect 0 "classes     10: airplane, automobile" data info cifar10:cifar
expect 0 "pixels      32 x 32" data info cifar10:cifar
expect 0 "mean        0.5000 0.5000 0.5000" data info cifar10:cifar
expect 0 "deviation   0.5000 0.5000 0.5000" data info cifar10:cifar
expect 0 "unreadable  0" data info cifar10:cifar
expect 0 "unreadable  1" data info imagefolder:folder
expect 0 "train/dog/text.jpg" data info imagefolder:folder
expect 0 "damaged     1" data info imagefolder:folder
expect 0 "train/dog/cut.jpg" data info imagefolder:folder
expect 0 "training    37 tokens" data info tokens:text.txt
expect 0 "15 different tokens occur" data info tokens:text.txt
expect 0 "without end" data info synthetic
expect 0 '"width_most":	17' data info imagefolder:folder --json
expect 0 '"tokens_used":	15' data info --json tokens:text.txt
if command -v python3 >/dev/null; then
    for data in cifar10:cifar imagefolder:folder tokens:text.txt; do
        "$CAROUSEL" data info $data --json | python3 -c 'import json, sys; assert json.load(sys.stdin)["data"]' ||
            fail "data info $data --json is not JSON"
    done
fi

# ---- folders in folders, and what is not used

mkdir -p deep/train/cat/more/still deep/train/dog deep/val/cat deep/extra
tail -c +2 "$jpegs/rgb" | tee deep/train/cat/more/1.jpg deep/train/cat/more/still/2.jpg deep/train/dog/1.jpg >deep/val/cat/1.jpg
touch deep/train/cat/a.gif deep/train/cat/more/b.bmp deep/train/dog/.hidden.jpg deep/train/stray.jpg deep/README
expect 0 "training    3 images" data info imagefolder:deep
expect 0 "not used    7" data info imagefolder:deep
expect 0 "images of other types than JPEG, PNG and WebP: 2, first train/cat/a.gif" data info imagefolder:deep
expect 0 "hidden files and folders: 1, first train/dog/.hidden.jpg" data info imagefolder:deep
expect 0 "files outside of class folders: 2, first README" data info imagefolder:deep
expect 0 "folders beside those of the splits: 1, first extra" data info imagefolder:deep
expect 0 "classes without an image to evaluate on: 1, first val/dog" data info imagefolder:deep
expect 0 "not used    0" data info cifar10:cifar
expect 0 "not used    7" data pack --size 8 -o deep.pack imagefolder:deep
expect 0 "not used in the data: images of other types than JPEG, PNG and WebP: 2, first train/cat/a.gif; hidden" train --model mlp --data imagefolder:deep --image-size 8 --workers 1 --batch 1 --steps 1 --out deep-run
grep -q '"unused":	7' deep-run/summary.json || fail "summary.json does not count what is not used"
if command -v python3 >/dev/null; then
    "$CAROUSEL" data info imagefolder:deep --json | python3 -c '
import json, sys
unused = {entry["reason"]: (entry["count"], entry["first"]) for entry in json.load(sys.stdin)["unused"]}
assert unused["other_format"] == (2, "train/cat/a.gif"), unused
assert unused["empty_class"] == (1, "val/dog"), unused
assert len(unused) == 5, unused' || fail "data info --json does not say what is not used"
fi
expect 0 "dog                           -   no samples" eval deep-run
expect 0 '"accuracy":	null' eval deep-run --json

# Names that no terminal and no JSON should get as they are.
mkdir -p names/train/cat names/train/a-very-long-name names/val/cat
tee names/train/cat/1.jpg names/val/cat/1.jpg <deep/val/cat/1.jpg >names/train/a-very-long-name/1.jpg
touch $'names/train/cat/\033[31m.gif'
expect 0 'first train/cat/\x1B[31m.gif' data info imagefolder:names
expect 1 'imagefolder:no\x1B[31m: No such file' train --model mlp --data $'imagefolder:no\033[31m'
"$CAROUSEL" train --model mlp --data $'imagefolder:no\033[31m' 2>&1 | grep -q $'\033' && fail "a control character reaches the terminal"
"$CAROUSEL" train --model mlp --data imagefolder:names --image-size 8 --workers 1 --batch 1 --steps 1 --out names-run >names.log 2>&1
expect 0 ", numbered like the rows:" eval names-run
expect 0 " 1 cat " eval names-run
mv names/val/cat $'names/val/c\xFFt'
mv names/train/cat $'names/train/c\xFFt'
expect 1 "class 1 is named 'c\\xFFt'" data info imagefolder:names
rm deep/train/dog/.hidden.jpg # the end of this script looks for what is hidden

# ---- packing

expect 0 "4 images to train on, 1 to evaluate on" data pack cifar10:cifar -o cifar.pack
expect 0 "unreadable  1" data pack --size 8 -o folder.pack imagefolder:folder
stored=$("$CAROUSEL" data info cifar10:cifar | tail -n +2)
packed=$("$CAROUSEL" data info packed:cifar.pack | tail -n +2)
[ "$stored" = "$packed" ] || fail "packed data are other data: $packed instead of $stored"
expect 0 "pixels      8 to 12 wide, 8 to 22 high" data info packed:folder.pack
expect 0 "training image 6: could not be read when it was packed" data info packed:folder.pack
expect 1 "cifar.pack already exists" data pack cifar10:cifar -o cifar.pack
expect 1 "only stored images can be packed" data pack tokens:text.txt -o t.pack
expect 1 "only stored images can be packed" data pack synthetic -o t.pack

# ---- what goes wrong on a disk

expect 1 "No such file" data info cifar10:absent
expect 1 "No such file" data info imagefolder:absent
expect 1 "No such file" data info tokens:absent
expect 1 "No such file" data info packed:absent
expect 1 "not a regular file" data info tokens:cifar
expect 1 "No such file" data pack cifar10:cifar -o absent/file
head -c 5000 cifar.pack >cut.pack
expect 1 "cut short or damaged" data info packed:cut.pack
expect 1 "cut short or damaged" data pack packed:cut.pack -o again.pack
expect 1 "not a file of packed images" data info packed:text.txt
: >empty.txt
expect 1 "contains no tokens" data info tokens:empty.txt
if [ "$(id -u)" != 0 ]; then
    mkdir closed
    chmod 0 closed
    expect 1 "Permission denied" data info imagefolder:closed
    chmod 0500 closed
    expect 1 "Permission denied" data pack cifar10:cifar -o closed/file
fi

# A disk that is full: a small one if we may mount it, else a limit to the size of files.
mkdir small
if mount -t tmpfs -o size=12k tmpfs small 2>/dev/null; then
    expect 1 "No space left on device" data pack cifar10:cifar -o small/file
else
    ( ulimit -f 8 && "$CAROUSEL" data pack cifar10:cifar -o small/file 2>error ) && fail "a full disk was not noticed"
    grep -q "File too large" error || fail "a full disk gave: $(cat error)"
fi
[ -z "$(ls -A small)" ] || fail "a full disk left something behind: $(ls -A small)"
[ -e t.pack ] || [ -e again.pack ] && fail "a failure left a file behind"
[ -z "$(find . -name '.?*' -o -name '*tmp*')" ] || fail "something temporary was left: $(ls -A)"

# A page of a mapped file that is gone when it is touched: a plain line, not a dump.
"$CAROUSEL" train --model mlp --steps 1000000 >begun 2>lost &
runner=$!
until grep -q '^step' begun || ! kill -0 $runner 2>/dev/null; do sleep 0.05; done
kill -BUS $runner
wait $runner
[ $? = 1 ] || fail "a lost page did not end the program with 1"
grep -q "a file became shorter while it was being read" lost || fail "a lost page gave: $(cat lost)"

finish
