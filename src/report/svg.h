/* Shapes, text and colours of the SVG figures. */
#ifndef CAR_REPORT_SVG_H
#define CAR_REPORT_SVG_H

#include "base/text.h"

/* 0xRRGGBB. */
typedef unsigned car_colour;

typedef enum car_anchor { CAR_ANCHOR_START, CAR_ANCHOR_MIDDLE, CAR_ANCHOR_END } car_anchor;

typedef struct car_svg_style {
    double size;
    car_colour colour;
    car_anchor anchor;
    bool bold;
} car_svg_style;

enum {
    CAR_INK = 0x1f2933,   /* text */
    CAR_FAINT = 0x5f6b7a, /* less important text; contrast is still 5 : 1 on white */
    CAR_GUIDE = 0xd9dee5, /* grid lines of a chart */
    CAR_PAPER = 0xffffff
};

/* A colour at position `at` in [0, 1] of a scale that is distinguishable with every kind of colour vision. */
car_colour car_colour_stage(double at);
car_colour car_colour_worker(double at);
/* Adds `share` of white. */
car_colour car_colour_lighten(car_colour colour, double share);
/* Ink or paper, whichever is more readable on the colour. */
car_colour car_colour_text_on(car_colour colour);

void car_svg_begin(car_text *svg, double width, double height, const char *title);
void car_svg_end(car_text *svg);
void car_svg_rect(car_text *svg, double x, double y, double width, double height, car_colour fill);
/* `dash` as in stroke-dasharray; NULL for a solid line. */
void car_svg_line(car_text *svg, double x1, double y1, double x2, double y2, car_colour colour, double width,
                  const char *dash);
/* The text is escaped. */
void car_svg_label(car_text *svg, double x, double y, car_svg_style style, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
