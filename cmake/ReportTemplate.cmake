# The page of `carousel report`: src/report/page/ made into one HTML file, and that into an array for the C program, so
# that whoever runs it needs no other file. Included, it adds the generated source to CAR_REPORT_TEMPLATE; called as
#   cmake -DPAGE_DIR=src/report/page -DOUTPUT=FILE.c -P cmake/ReportTemplate.cmake
# it generates. Nothing here needs a network: the charting library is in page/vendor, tools/vendor-uplot.sh renews it.

# In the order in which the page has them: each uses only what is before it.
set(page_scripts base.js theme.js data.js chart.js summary.js curves.js memory.js gantt_draw.js gantt.js traffic.js
    partition.js classes.js live.js main.js)
set(page_library vendor/uplot/uPlot.iife.min.js vendor/uplot/uPlot.min.css vendor/uplot/LICENSE)

if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(page_dir ${PROJECT_SOURCE_DIR}/src/report/page)
    set(CAR_REPORT_TEMPLATE ${PROJECT_BINARY_DIR}/report_template.c)
    list(TRANSFORM page_scripts PREPEND ${page_dir}/ OUTPUT_VARIABLE page_inputs)
    foreach(file IN LISTS page_library)
        list(APPEND page_inputs ${page_dir}/${file})
    endforeach()
    add_custom_command(OUTPUT ${CAR_REPORT_TEMPLATE}
                       COMMAND ${CMAKE_COMMAND} -DPAGE_DIR=${page_dir} -DOUTPUT=${CAR_REPORT_TEMPLATE}
                               -P ${CMAKE_CURRENT_LIST_FILE}
                       DEPENDS ${page_inputs} ${page_dir}/page.html ${page_dir}/page.css ${CMAKE_CURRENT_LIST_FILE}
                       COMMENT "Making the report's template" VERBATIM)
    return()
endif()

# Puts a text in the place of {{name}}.
macro(fill name text)
    string(REPLACE "{{${name}}}" "${${text}}" page "${page}")
endmacro()

file(READ ${PAGE_DIR}/page.html page)
file(READ ${PAGE_DIR}/page.css styles)
file(READ ${PAGE_DIR}/vendor/uplot/uPlot.iife.min.js library)
file(READ ${PAGE_DIR}/vendor/uplot/uPlot.min.css library_styles)
file(READ ${PAGE_DIR}/vendor/uplot/LICENSE library_licence)
set(script "")
foreach(name IN LISTS page_scripts)
    file(READ ${PAGE_DIR}/${name} text)
    string(APPEND script "${text}\n")
endforeach()
fill(styles styles)
fill(library_styles library_styles)
fill(library_licence library_licence)
fill(library library)
fill(script script)

file(WRITE ${OUTPUT}.html "${page}")
file(READ ${OUTPUT}.html bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "/* Made by cmake/ReportTemplate.cmake out of src/report/page/. */
#include <stddef.h>

extern const unsigned char car_report_template[];
extern const size_t car_report_template_bytes;

const unsigned char car_report_template[] = {
${bytes}
};
const size_t car_report_template_bytes = sizeof car_report_template;
")
