# What Carousel stands on. Sets
#   CAR_INCLUDE_DIRS    where the headers are
#   CAR_LIBRARIES       what to link with: as found here for our own targets, by name for installed ones,
#                       since they may be used on another machine

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

find_path(DNNL_INCLUDE_DIR dnnl.h DOC "Folder of oneDNN's dnnl.h")
find_library(DNNL_LIBRARY dnnl DOC "oneDNN's library")
if(NOT DNNL_INCLUDE_DIR OR NOT DNNL_LIBRARY)
    message(FATAL_ERROR "oneDNN is missing (Debian: libdnnl-dev). `make deps` installs what is needed; for one in an "
                        "unusual place set CMAKE_PREFIX_PATH.")
endif()

pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp libwebpdemux)

# MPI: what mpicc in the path belongs to; another one by -DMPI_C_COMPILER=mpicc.mpich. `auto` does without.
set(CAR_MPI auto CACHE STRING "Ranks over MPI: ON, OFF or auto")
set(CAR_HAS_MPI OFF)
if(NOT CAR_MPI STREQUAL "OFF")
    find_package(MPI COMPONENTS C)
    if(MPI_C_FOUND)
        set(CAR_HAS_MPI ON)
    elseif(NOT CAR_MPI STREQUAL "auto")
        message(FATAL_ERROR "MPI is missing (Debian: libopenmpi-dev). Set CAR_MPI=OFF to build without it.")
    endif()
endif()

set(CAR_INCLUDE_DIRS ${DNNL_INCLUDE_DIR} ${CJSON_INCLUDE_DIRS} ${JPEG_INCLUDE_DIRS} ${PNG_INCLUDE_DIRS}
    ${WEBP_INCLUDE_DIRS})
# gomp by name, without the compiler's OpenMP flags: those would make clang bring LLVM's runtime into
# the process beside the one that oneDNN uses, and settings would reach only one of the two.
set(CAR_LIBRARIES
    $<BUILD_INTERFACE:${DNNL_LIBRARY}> $<BUILD_INTERFACE:PkgConfig::CJSON> $<BUILD_INTERFACE:PkgConfig::JPEG>
    $<BUILD_INTERFACE:PkgConfig::PNG> $<BUILD_INTERFACE:PkgConfig::WEBP> $<BUILD_INTERFACE:Threads::Threads>
    $<INSTALL_INTERFACE:dnnl> $<INSTALL_INTERFACE:cjson> $<INSTALL_INTERFACE:jpeg> $<INSTALL_INTERFACE:png>
    $<INSTALL_INTERFACE:webpdemux> $<INSTALL_INTERFACE:webp> $<INSTALL_INTERFACE:pthread> gomp m)
set(CAR_PRIVATE_LIBS "")
if(CAR_HAS_MPI)
    # Only what it is: mpicc's flags for the C++ bindings and the like stay out.
    list(APPEND CAR_INCLUDE_DIRS ${MPI_C_INCLUDE_DIRS})
    foreach(library IN LISTS MPI_C_LIBRARIES)
        get_filename_component(name ${library} NAME_WE)
        string(REGEX REPLACE "^lib" "" name ${name})
        list(APPEND CAR_LIBRARIES $<BUILD_INTERFACE:${library}> $<INSTALL_INTERFACE:${name}>)
        string(APPEND CAR_PRIVATE_LIBS " -l${name}")
    endforeach()
endif()
