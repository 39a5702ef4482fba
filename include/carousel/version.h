/* The version of Carousel. The build reads it from here. */
#ifndef CAROUSEL_VERSION_H
#define CAROUSEL_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CAR_VERSION_MAJOR 0
#define CAR_VERSION_MINOR 1
#define CAR_VERSION_PATCH 0
/* The version of these headers as text, "MAJOR.MINOR.PATCH". */
#define CAR_VERSION "0.1.0"

/* The version of the library in use. Before 1.0, minor versions may have incompatible interfaces. */
const char *car_version(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
