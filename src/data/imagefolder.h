/* The contents of an image folder: imagefolder_list.c finds the files, imagefolder.c reads them. */
#ifndef CAR_IMAGEFOLDER_H
#define CAR_IMAGEFOLDER_H

#include "base/base.h"
#include "carousel/data.h"

enum { CAR_IMAGEFOLDER_HELD_OUT = 10 }; /* without an evaluation folder, every tenth file is held out */

/* The files of one split. Names are stored in one block, each ending in a zero, so that a million of them take
 * little memory. */
typedef struct car_imagefolder_files {
    char place[8]; /* "train/", "val/", "test/" or "" */
    char *names;   /* relative to the class's folder: "1.jpg", "deeper/2.jpg" */
    int name_bytes, name_capacity;
    int32_t *starts; /* offset of each file's name */
    int count, capacity;
    int32_t *firsts; /* [classes + 1]: the number of each class's first file */
} car_imagefolder_files;

typedef struct car_imagefolder {
    car_context *context;
    int root;
    char **classes;
    int class_count, class_capacity;
    car_imagefolder_files files[CAR_SPLITS];
    bool held_out; /* the first list contains both splits */
    car_dataset_unused unused;
} car_imagefolder;

/* Finds classes and files below folder->root, and counts what is not used. `path` is used in messages. */
car_status car_imagefolder_list(car_imagefolder *folder, const char *path, car_dataset_info *info);

#endif
