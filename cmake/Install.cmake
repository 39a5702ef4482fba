# `cmake --install`: program, both libraries, headers, pkg-config file, CMake package, pages and examples. All of it finds
# its neighbours relative to itself, so the prefix may be chosen, or moved, after the build.

include(CMakePackageConfigHelpers)

install(TARGETS carousel)
install(TARGETS carousel_shared carousel_static EXPORT CarouselTargets)
install(DIRECTORY include/carousel TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
# Side by side as here, so that the pages' links hold.
install(FILES LICENSE README.md TYPE DOC)
install(DIRECTORY examples TYPE DOC FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.plan" PATTERN "*.sbatch")
install(DIRECTORY docs TYPE DOC FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN man EXCLUDE)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Carousel)
install(EXPORT CarouselTargets NAMESPACE Carousel:: DESTINATION ${package_dir})
configure_package_config_file(cmake/CarouselConfig.cmake.in CarouselConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(CarouselConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CarouselConfig.cmake ${PROJECT_BINARY_DIR}/CarouselConfigVersion.cmake
        DESTINATION ${package_dir})

if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
    set(pc_prefix ${CMAKE_INSTALL_PREFIX})
    set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
    set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
    file(RELATIVE_PATH pc_up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
    string(REGEX REPLACE "/$" "" pc_up ${pc_up})
    set(pc_prefix "\${pcfiledir}/${pc_up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/carousel.pc.in carousel.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/carousel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
