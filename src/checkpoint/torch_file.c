/* Recognises files of torch.save, which users often pass instead of safetensors files.
 *
 * Since 1.6 they are zip archives whose first entry is NAME/data.pkl. Before, they were several pickles, the first
 * of which is a magic number. A pickle is a program, so we do not read it, but say how to convert it. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "checkpoint/safetensors_internal.h"

enum { ZIP_NAME_LENGTH = 26, ZIP_NAME = 30, PATH_SHOWN = 200 };

static bool is_archive(const unsigned char *bytes, size_t size) {
    static const char wanted[] = "/data.pkl";
    if (size < ZIP_NAME || memcmp(bytes, "PK\x03\x04", 4) != 0) {
        return false;
    }
    size_t length = (size_t)bytes[ZIP_NAME_LENGTH] | (size_t)bytes[ZIP_NAME_LENGTH + 1] << 8, tail = sizeof wanted - 1;
    return length <= size - ZIP_NAME && length >= tail && memcmp(bytes + ZIP_NAME + length - tail, wanted, tail) == 0;
}

/* The long integer 0x1950a86a20f9469cfc6c, pickled with protocol 2. */
static bool is_old_pickle(const unsigned char *bytes, size_t size) {
    static const unsigned char magic[] = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                          0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};
    return size >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

bool car_torch_file_recognize(const void *bytes, size_t size) {
    return is_archive(bytes, size) || is_old_pickle(bytes, size);
}

/* Escapes `path` for a Python string in double quotes; cuts it if it is too long. */
static void quote(const char *path, size_t length, char *text, size_t capacity) {
    size_t used = 0;
    for (size_t i = 0; i < length && used + 2 < capacity; i++) {
        if (path[i] == '"' || path[i] == '\\') {
            text[used++] = '\\';
        }
        text[used++] = path[i];
    }
    text[used] = '\0';
}

/* The length of a path without PyTorch's usual endings. */
static size_t stem_of(const char *path) {
    static const char *const endings[] = {".pth", ".pt", ".bin", ".ckpt"};
    size_t length = strlen(path);
    for (size_t e = 0; e < sizeof endings / sizeof endings[0]; e++) {
        size_t tail = strlen(endings[e]);
        if (length > tail && strcmp(path + length - tail, endings[e]) == 0) {
            return length - tail;
        }
    }
    return length;
}

car_status car_torch_file_refuse(car_context *context, const char *path) {
    char from[PATH_SHOWN], to[PATH_SHOWN];
    const char *name = strrchr(path, '/');
    path = name && strlen(path) > PATH_SHOWN - 16 ? name + 1 : path; /* keep the message short */
    quote(path, strlen(path), from, sizeof from);
    quote(path, stem_of(path), to, sizeof to);
    return car_context_fail(
        context, CAR_ERROR_FORMAT,
        "%.160s was written by PyTorch's torch.save; convert it to safetensors with these two lines of Python (add "
        "[\"state_dict\"] after torch.load(...) if the weights are under that key):\nimport torch, "
        "safetensors.torch\nsafetensors.torch.save_file({k: v.clone().contiguous() for k, v in torch.load(\"%s\", "
        "map_location=\"cpu\").items()}, \"%s.safetensors\")",
        path, from, to);
}
