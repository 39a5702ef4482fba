# How every C file of the project is compiled.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

# No extensions, but the declarations of glibc and Linux: threads, mmap, affinity.
function(car_compile target)
    set_target_properties(${target} PROPERTIES C_STANDARD 17 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
                          POSITION_INDEPENDENT_CODE ON)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<BOOL:${CAR_WERROR}>:-Werror>)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    if(NOT "PUBLIC_HEADERS" IN_LIST ARGN) # what is no user of the library sees its inside
        target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    endif()
    target_include_directories(${target} SYSTEM PRIVATE ${CAR_INCLUDE_DIRS})
endfunction()

if(CAR_SANITIZE)
    add_compile_options(-fsanitize=${CAR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${CAR_SANITIZE})
endif()
