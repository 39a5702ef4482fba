/* Draws shapes and text into SVG figures, and defines their colours: see svg.h. */
#include "report/svg.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- colours --------------------------------------------------------------------------------- */

static int channel(car_colour colour, int shift) {
    return (int)(colour >> shift & 0xff);
}

static car_colour mix(car_colour a, car_colour b, double share) {
    car_colour mixed = 0;
    for (int shift = 0; shift <= 16; shift += 8) {
        double value = channel(a, shift) + share * (channel(b, shift) - channel(a, shift));
        mixed |= (car_colour)(value + 0.5) << shift;
    }
    return mixed;
}

static car_colour along(const car_colour *scale, int count, double at) {
    double place = (at < 0 ? 0 : at > 1 ? 1 : at) * (count - 1);
    int below = (int)place < count - 1 ? (int)place : count - 2;
    return mix(scale[below], scale[below + 1], place - below);
}

/* Both scales change steadily in lightness, so they also work in grey. */
car_colour car_colour_stage(double at) {
    static const car_colour scale[] = {0x472d7b, 0x3b528b, 0x2c728e, 0x21918c, 0x27ad81, 0x5ec962};
    return along(scale, (int)(sizeof scale / sizeof scale[0]), at);
}

car_colour car_colour_worker(double at) {
    static const car_colour scale[] = {0xb35806, 0xe08214, 0xfdb863, 0xfee0b6};
    return along(scale, (int)(sizeof scale / sizeof scale[0]), at);
}

car_colour car_colour_lighten(car_colour colour, double share) {
    return mix(colour, CAR_PAPER, share);
}

car_colour car_colour_text_on(car_colour colour) {
    double light = 0.299 * channel(colour, 16) + 0.587 * channel(colour, 8) + 0.114 * channel(colour, 0);
    return light > 140 ? CAR_INK : CAR_PAPER;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void add_escaped(car_text *svg, const char *text) {
    for (const char *c = text; *c; c++) {
        switch (*c) {
        case '&':
            car_text_add(svg, "&amp;");
            break;
        case '<':
            car_text_add(svg, "&lt;");
            break;
        case '>':
            car_text_add(svg, "&gt;");
            break;
        default:
            car_text_add(svg, "%c", *c);
        }
    }
}

void car_svg_begin(car_text *svg, double width, double height, const char *title) {
    car_text_add(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
        "font-family=\"Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\" role=\"img\">\n<title>",
        width, height, width, height);
    add_escaped(svg, title);
    car_text_add(svg, "</title>\n");
    car_svg_rect(svg, 0, 0, width, height, CAR_PAPER);
}

void car_svg_end(car_text *svg) {
    car_text_add(svg, "</svg>\n");
}

void car_svg_rect(car_text *svg, double x, double y, double width, double height, car_colour fill) {
    car_text_add(svg, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#%06x\"/>\n", x, y, width,
                 height, fill);
}

void car_svg_line(car_text *svg, double x1, double y1, double x2, double y2, car_colour colour, double width,
                  const char *dash) {
    car_text_add(svg, "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"#%06x\" stroke-width=\"%g\"", x1,
                 y1, x2, y2, colour, width);
    if (dash) {
        car_text_add(svg, " stroke-dasharray=\"%s\"", dash);
    }
    car_text_add(svg, "/>\n");
}

void car_svg_label(car_text *svg, double x, double y, car_svg_style style, const char *format, ...) {
    static const char *const anchors[] = {"start", "middle", "end"};
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    car_text_add(svg, "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%g\" fill=\"#%06x\" text-anchor=\"%s\"%s>", x, y,
                 style.size, style.colour, anchors[style.anchor], style.bold ? " font-weight=\"bold\"" : "");
    add_escaped(svg, text);
    car_text_add(svg, "</text>\n");
}
