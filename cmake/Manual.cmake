# The manual pages, where scdoc is: made by the program that they describe (tools/manpages.sh). Bash's completion is a
# script that asks the program.

find_program(CAR_SCDOC scdoc DOC "Makes the manual pages")
# A program with a sanitizer in it is not one to install.
if(CAR_SCDOC AND NOT CAR_SANITIZE)
    set(manual_dir ${PROJECT_BINARY_DIR}/man)
    file(GLOB manual_parts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/man/*.scd)
    add_custom_command(OUTPUT ${manual_dir}/carousel.1
                       COMMAND ${PROJECT_SOURCE_DIR}/tools/manpages.sh $<TARGET_FILE:carousel>
                               ${PROJECT_SOURCE_DIR}/docs/man ${manual_dir}
                       DEPENDS carousel ${manual_parts} ${PROJECT_SOURCE_DIR}/tools/manpages.sh
                       COMMENT "Making the manual pages" VERBATIM)
    add_custom_target(manual ALL DEPENDS ${manual_dir}/carousel.1)
    install(DIRECTORY ${manual_dir}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
else()
    add_custom_target(manual)
endif()
install(FILES tools/carousel.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME carousel)
