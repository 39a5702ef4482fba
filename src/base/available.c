/* Finds how much memory is available: see available.h.
 *
 *   /proc/self/cgroup      4:memory:/jobs/a      (version 2: 0::/jobs/a)
 *   /proc/self/mountinfo   ... /jobs /sys/fs/cgroup/memory ... - cgroup cgroup rw,memory
 *   so the group is        /sys/fs/cgroup/memory/a; the groups above it count as well, up to the mount */
#include "base/available.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 8192 };

/* The files of a control group, by version. */
typedef struct group_files {
    const char *limit, *usage;
    const char *reclaimable[3]; /* fields of memory.stat */
} group_files;

static const group_files files_of[2] = {
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file", "total_slab_reclaimable"}},
    {"memory.max", "memory.current", {"inactive_file", "active_file", "slab_reclaimable"}},
};

static const uint64_t endless = (uint64_t)1 << 60; /* version 1 writes "no limit" as a number above this */

static FILE *open_in(const char *directory, const char *name) {
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    return length > 0 && length < (int)sizeof path ? fopen(path, "r") : NULL;
}

/* Reads a file with one number; UINT64_MAX if it is missing or says "max". */
static uint64_t read_number(const char *directory, const char *name) {
    FILE *file = open_in(directory, name);
    unsigned long long value = 0;
    bool found = file && fscanf(file, "%llu", &value) == 1;
    if (file) {
        fclose(file);
    }
    return found ? value : UINT64_MAX;
}

/* The sum of the named lines in a file of "NAME VALUE" lines; *found is how many there were. */
static uint64_t sum_lines(FILE *file, const char *const *names, int count, int *found) {
    char line[LINE_BYTES], name[64];
    unsigned long long value = 0;
    uint64_t sum = 0;
    *found = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %llu", name, &value) != 2) {
            continue;
        }
        for (int n = 0; n < count; n++) {
            if (strcmp(name, names[n]) == 0) {
                sum += value;
                (*found)++;
            }
        }
    }
    if (file) {
        fclose(file);
    }
    return sum;
}

/* ---- control groups -------------------------------------------------------------------------- */

/* True if a comma-separated list contains a word. */
static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        bool begins = at == list || at[-1] == ',', ends = at[length] == ',' || at[length] == '\0';
        if (begins && ends) {
            return true;
        }
    }
    return false;
}

/* The group of this process, as named in the hierarchy. */
static bool find_group(const char *root, bool second, char *group) {
    char line[LINE_BYTES], path[PATH_BYTES];
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/self", root);
    FILE *file = open_in(path, "cgroup");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *name = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!name || strlen(name + 1) >= PATH_BYTES) {
            continue;
        }
        *name++ = '\0';
        controllers++;
        found = second ? controllers[0] == '\0' : has_word(controllers, "memory");
        memcpy(group, name, strlen(name) + 1);
    }
    if (file) {
        fclose(file);
    }
    return found;
}

/* Where the hierarchy is mounted, and which of its groups is the top of the mount. */
static bool find_mount(const char *root, bool second, char *mount, char *top) {
    char line[LINE_BYTES], path[PATH_BYTES], type[64], options[1024];
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/self", root);
    FILE *file = open_in(path, "mountinfo");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) != 2 ||
            sscanf(rest, " - %63s %*s %1023s", type, options) != 2) {
            continue;
        }
        found = second ? strcmp(type, "cgroup2") == 0 : strcmp(type, "cgroup") == 0 && has_word(options, "memory");
    }
    if (file) {
        fclose(file);
    }
    return found;
}

/* The bytes that one group leaves; UINT64_MAX if it has no limit. */
static uint64_t room_of(const char *directory, const group_files *files) {
    int found = 0;
    uint64_t limit = read_number(directory, files->limit), usage = read_number(directory, files->usage);
    if (limit >= endless || usage == UINT64_MAX) {
        return UINT64_MAX;
    }
    uint64_t cache = sum_lines(open_in(directory, "memory.stat"), files->reclaimable, 3, &found);
    uint64_t held = usage > cache ? usage - cache : 0;
    return limit > held ? limit - held : 0;
}

static uint64_t identify(const char *directory) {
    struct stat entry;
    return stat(directory, &entry) == 0 ? ((uint64_t)entry.st_dev << 40) ^ (uint64_t)entry.st_ino ^ 1 : 1;
}

/* Checks the group and all groups that contain it. */
static void look_at_groups(const char *root, bool second, car_available *out) {
    char group[PATH_BYTES], mount[PATH_BYTES], top[PATH_BYTES], directory[3 * PATH_BYTES];
    if (!find_group(root, second, group) || !find_mount(root, second, mount, top)) {
        return;
    }
    /* A container may see its own group as the top of the hierarchy, under another name. */
    size_t shared = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool below =
        strncmp(group, top, shared) == 0 && (group[shared] == '/' || group[shared] == '\0') && !strstr(group, "/..");
    int base = snprintf(directory, sizeof directory, "%s%s", root, mount);
    snprintf(directory + base, sizeof directory - (size_t)base, "%s", below ? group + shared : "");
    for (;;) {
        uint64_t room = room_of(directory, &files_of[second]);
        if (room < out->group) {
            out->group = room;
            out->group_id = identify(directory);
        }
        char *slash = strrchr(directory + base, '/');
        if (!slash) {
            return;
        }
        *slash = '\0';
    }
}

/* ---- all ------------------------------------------------------------------------------------- */

car_available car_available_find_below(const char *root) {
    static const char *const line[] = {"MemAvailable:"};
    car_available out = {.machine = UINT64_MAX, .group = UINT64_MAX};
    char directory[PATH_BYTES];
    int found = 0;
    snprintf(directory, sizeof directory, "%s/proc", root);
    uint64_t kilobytes = sum_lines(open_in(directory, "meminfo"), line, 1, &found);
    out.machine = found > 0 ? kilobytes * 1024 : UINT64_MAX;
    look_at_groups(root, false, &out);
    look_at_groups(root, true, &out);
    return out;
}

car_available car_available_find(void) {
    return car_available_find_below("");
}

uint64_t car_available_physical(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

uint64_t car_available_addresses(void) {
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return UINT64_MAX;
    }
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%llu", &pages) != 1) {
        pages = 0;
    }
    if (file) {
        fclose(file);
    }
    uint64_t used = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}
