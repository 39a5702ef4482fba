#!/usr/bin/env bash
# Somebody with photos: from a folder of files of all kinds, some broken, through fine-tuning to predictions, with the
# commands of docs/photos.md. CAROUSEL names the program.
# shellcheck source=tests/users/common.sh
. "$(dirname "$0")/common.sh"
need imagenet-sample.tar
cd "$directory" || exit 1
mkdir all
tar -C all -xf "$shared/imagenet-sample.tar"

# take SPLIT/CLASS NAME...: photos by their names.
take() {
    local folder=photos/$1 name
    mkdir -p "$folder"
    shift
    for name; do cp all/*/n*_"$name".JPEG "$folder/$name.jpg" || fail "there is no $name"; done
}

take train/bird goldfinch indigo_bunting jay hummingbird toucan black_swan bittern
take train/dog Japanese_spaniel beagle borzoi otterhound collie dalmatian Airedale
take train/furniture desk four-poster wardrobe medicine_chest bathtub
take train/music acoustic_guitar banjo cornet marimba ocarina
take train/vehicle airliner airship fireboat moped oxcart snowplow
take val/bird redshank pelican
take val/dog Norfolk_terrier Great_Dane
take val/furniture studio_couch washbasin
take val/music steel_drum trombone
take val/vehicle harvester passenger_car
mkdir new
cp all/*/n*_beagle.JPEG all/*/n*_airliner.JPEG new

# ---- files of all kinds, and broken ones

if has PIL; then
    "$python" - <<'PY' || fail "Pillow could not make the files"
from PIL import Image
import os
for name, kind, mode in (("bird/jay", "png", "RGB"), ("bird/toucan", "webp", "RGB"), ("dog/collie", "jpg", "L"),
                         ("dog/borzoi", "jpg", "CMYK"), ("music/banjo", "png", "P"), ("vehicle/moped", "png", "RGBA")):
    path = f"photos/train/{name}.jpg"
    image = Image.open(path).convert("RGB").convert(mode)
    os.remove(path)
    image.save(f"photos/train/{name}.{kind}")
Image.open("photos/train/bird/jay.png").save("new/jay.png")
Image.open("photos/val/dog/Great_Dane.jpg").resize((150, 140)).save("new/dane.png")
PY
else
    echo "LEFT OUT: $python has no Pillow; all photos are JPEG" >&2
    cp all/*/n*_jay.JPEG new/jay.png
fi
head -c 5000 all/*/n*_plane.JPEG >photos/train/vehicle/cut.jpg
echo "no image" >photos/train/vehicle/text.png
cp photos/train/vehicle/airship.jpg photos/train/vehicle/airship.gif
echo "notes" >photos/train/dog/notes.txt

# ---- weights to begin with: PyTorch's, or else our own with as many classes

if has torch torchvision; then
    "$python" "$root/tests/torch/torch_weights.py" export resnet18 resnet18.safetensors || fail "PyTorch wrote no weights"
else
    echo "LEFT OUT: $python has no PyTorch; the weights are our own" >&2
    "$CAROUSEL" train --model resnet18 --classes 1000 --image-size 96 --workers 1 --batch 2 --steps 1 --out first >/dev/null
    "$python" - <<'PY' || fail "the weights have no header"
# Without the card, as PyTorch's weights have none.
import json, struct
data = open("first/weights.safetensors", "rb").read()
size, = struct.unpack("<Q", data[:8])
header = json.loads(data[8 : 8 + size])
header.pop("__metadata__", None)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open("resnet18.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data[8 + size :])
PY
fi

# ---- the page's commands, and what they print

run_page photos.md
grep -q "training    32 images" 1.log || fail "data info: $(cat 1.log)"
grep -q "evaluation  10 images" 1.log || fail "data info: $(cat 1.log)"
grep -q "unreadable  1" 1.log || fail "data info does not count what cannot be read: $(cat 1.log)"
grep -q "damaged     1" 1.log || fail "data info does not count what is cut: $(cat 1.log)"
grep -q "images of other types than JPEG, PNG and WebP: 1, first train/vehicle/airship.gif" 1.log || fail "data info: $(cat 1.log)"
grep -q "2 of the head, initialized anew: fc.weight, fc.bias" 2.log || fail "train does not say what becomes of the head: $(cat 2.log)"
grep -q "frozen: 50 of 102 parameter tensors" 2.log || fail "train does not say what is frozen: $(cat 2.log)"
grep -q "1 samples could not be read, 1 are damaged" 2.log || fail "train does not say what was broken: $(cat 2.log)"
for file in best.safetensors weights.safetensors confusion.json; do [ -s run/$file ] || fail "run/$file is not there"; done
grep -q '"metric":	"accuracy"' run/summary.json || fail "summary.json does not name the best"
grep -q "accuracy of each class:" 3.log || fail "eval: $(cat 3.log)"
[ "$(grep -c '% of 2' 3.log)" = 5 ] || fail "eval does not have two samples of each class: $(cat 3.log)"
[ "$(grep -c '^new/.*%, .*%, .*%$' 4.log)" = "$(find new -type f | wc -l)" ] || fail "predict: $(cat 4.log)"
grep -q '"class":"bird","index":0,"probability":' 5.log || fail "predict --json: $(cat 5.log)"
grep -q '"per_class"' run.html || fail "the report has no classes"

# ---- what is frozen stays as it was, to the bit; the file says all that is needed

"$python" - <<'PY' || fail "weights or metadata are not what they should be"
import fnmatch
import json
import struct


def read(path):
    data = open(path, "rb").read()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    card = header.pop("__metadata__", {})
    return {name: data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]] for name, t in header.items()}, card


before, _ = read("resnet18.safetensors")
after, card = read("run/best.safetensors")
frozen = [name for name in after if any(fnmatch.fnmatchcase(name, p) for p in ("conv1.*", "bn1.*", "layer[12].*"))]
assert len(frozen) == 50, len(frozen)
assert any("running_mean" in name for name in frozen)
assert all(before[name] == after[name] for name in frozen), "a frozen parameter has changed"
assert all(before[name] != after[name] for name in after if name.startswith("layer4") and "conv" in name)
assert json.loads(card["carousel.class_names"]) == ["bird", "dog", "furniture", "music", "vehicle"], card
want = {"model": "resnet18", "classes": "5", "image_size": "96", "resize": "110", "mean": "0.485,0.456,0.406"}
assert all(card["carousel." + key] == value for key, value in want.items()), card
PY

# ---- predictions as PyTorch's, of images that no decoder makes smaller

if has torch torchvision PIL; then
    "$CAROUSEL" predict run/best.safetensors new/jay.png new/dane.png --top 5 --json >ours.json || fail "predict"
    "$python" - "$root/tests/torch" <<'PY' || fail "predictions are not PyTorch's"
import json
import sys

sys.path.insert(0, sys.argv[1])
import torch
import torchvision
import torchvision.transforms as T
from PIL import Image
from torch_weights import read_safetensors

tensors, card = read_safetensors("run/best.safetensors")
model = torchvision.models.resnet18(num_classes=5)
model.load_state_dict({name: torch.from_numpy(value) for name, value in tensors.items()}, strict=False)
model.eval()
three = lambda key: [float(x) for x in card["carousel." + key].split(",")]
prepare = T.Compose([T.Resize(int(card["carousel.resize"])), T.CenterCrop(int(card["carousel.image_size"])), T.ToTensor(),
                     T.Normalize(three("mean"), three("deviation"))])
for answer in json.load(open("ours.json")):
    with torch.no_grad():
        theirs = model(prepare(Image.open(answer["file"]).convert("RGB"))[None]).softmax(1)[0]
    for one in answer["predictions"]:
        difference = abs(one["probability"] - float(theirs[one["index"]]))
        assert difference < 0.01, (answer["file"], one, theirs)
    assert answer["predictions"][0]["index"] == int(theirs.argmax())
PY
else
    echo "LEFT OUT: without PyTorch and Pillow predictions are compared with nothing" >&2
fi

# ---- broken images are reported, and do not stop the others

expect 1 "nowhere.jpg: No such file" predict run new/jay.png nowhere.jpg --top 1
expect 1 "1 of 2 images could not be read" predict run photos/train/vehicle/text.png new/jay.png
expect 1 "new/jay.png: " predict run photos/train/vehicle/text.png new/jay.png
expect 0 "damaged: photos/train/vehicle/cut.jpg" predict run photos/train/vehicle/cut.jpg
expect 1 '"error":"photos/train/vehicle/text.png: Not a PNG file' predict run photos/train/vehicle/text.png --json
expect 2 "no weights are given" predict
mkdir empty
expect 2 "no IMAGE or DIR is given" predict run
expect 2 "no images were found" predict run empty
expect 2 "does not say which model it is of" predict resnet18.safetensors new
expect 0 "class " predict resnet18.safetensors new --model resnet18 --image-size 96

# ---- a weights file alone; other classes are noticed

cp run/best.safetensors alone.safetensors
expect 0 "$(sed -n 's/^loss [0-9.]*, //p' 3.log)" eval --weights alone.safetensors --data imagefolder:photos --batch 4
mkdir -p other/train/{apple,dog,furniture,music,vehicle} other/val/dog
for class in apple dog furniture music vehicle; do cp all/*/n*_beagle.JPEG other/train/$class/1.jpg; done
cp all/*/n*_beagle.JPEG other/val/dog/1.jpg
expect 1 "class 0 is 'apple' in the data and 'bird' in the weights" eval --weights alone.safetensors --data imagefolder:other

# ---- average, patience and all, to the bit: through a resume, and over ranks

settings=(--model resnet18 --image-size 32 --data imagefolder:photos --freeze 'layer1.*' --ema 0.9 --workers 2 --batch 4
    --lr 0.01 --augment resized-crop)
"$CAROUSEL" train "${settings[@]}" --steps 6 --eval-every 3 --out whole >whole.log 2>&1 || fail "train: $(cat whole.log)"
grep -q "with the averaged weights: loss" whole.log || fail "the average is not evaluated: $(cat whole.log)"
"$CAROUSEL" train "${settings[@]}" --steps 3 --out parts >parts.log 2>&1 || fail "train: $(cat parts.log)"
"$CAROUSEL" train --out parts --resume --steps 6 >parts.log 2>&1 || fail "resume: $(cat parts.log)"
"$CAROUSEL" train "${settings[@]}" --steps 6 --placement pipeline --out ranks >ranks.log 2>&1 || fail "ranks: $(cat ranks.log)"
for run in parts ranks; do
    for file in weights average; do
        cmp whole/$file.safetensors $run/$file.safetensors || fail "$file of $run is not that of the whole run"
    done
done
expect 0 "using whole/average.safetensors" eval whole
"$CAROUSEL" train --model mlp --image-size 8 --data imagefolder:photos --workers 1 --batch 4 --lr 0 --steps 40 --eval-every 2 \
    --patience 2 --out patient >patient.log 2>&1 || fail "patience: $(cat patient.log)"
grep -q "stopping: 2 evaluations without a better loss" patient.log || fail "patience: $(cat patient.log)"
grep -q "done after 6 steps" patient.log || fail "patience does not end in order: $(cat patient.log)"
expect 2 "needs evaluations during training: set --eval-every" train --model mlp --patience 2 --steps 2
expect 2 "it must be accuracy or loss" train --model mlp --keep-best size --eval-every 1 --steps 2 --out none
expect 2 "it must be auto, resized-crop" train --model mlp --augment flop --steps 2
expect 2 "dropout is not supported" train --model resnet20 --dropout 0.1 --steps 1

finish
