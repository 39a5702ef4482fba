/* A folder of images: what imagefolder_list.c finds in it and imagefolder.c reads. */
#ifndef CAR_IMAGEFOLDER_H
#define CAR_IMAGEFOLDER_H

#include "base/base.h"
#include "carousel/data.h"

enum { CAR_IMAGEFOLDER_HELD_OUT = 10 }; /* one of so many, where no folder is for evaluation */

/* The files of one split. Names lie one behind the other, each ended by a zero: a million of them must fit. */
typedef struct car_imagefolder_files {
    char place[8]; /* "train/", "val/", "test/" or "" */
    char *names;   /* below the class's folder: "1.jpg", "deeper/2.jpg" */
    int name_bytes, name_capacity;
    int32_t *starts; /* where a file's name begins */
    int count, capacity;
    int32_t *firsts; /* by class, and one more: the number of its first file */
} car_imagefolder_files;

typedef struct car_imagefolder {
    car_context *context;
    int root;
    char **classes;
    int class_count, class_capacity;
    car_imagefolder_files files[CAR_SPLITS];
    bool held_out; /* both splits are in the first list */
    car_dataset_unused unused;
} car_imagefolder;

/* Finds classes and files below folder->root, and counts what is not used. `path` is for messages. */
car_status car_imagefolder_list(car_imagefolder *folder, const char *path, car_dataset_info *info);

#endif
