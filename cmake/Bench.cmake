# bench/NAME.c is the program build/bench/NAME; bench/run.sh runs them. The target `bench` builds all.

pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)

add_custom_target(bench)
file(GLOB bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.c)
foreach(source IN LISTS bench_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
    car_compile(bench_${name})
    target_link_libraries(bench_${name} PRIVATE kernel_cases PkgConfig::OPENBLAS)
    add_dependencies(bench bench_${name})
endforeach()

# What ranks hand to MPI, written down around the unchanged program: bench/network.
if(CAR_HAS_MPI)
    add_library(bench_sends MODULE ${PROJECT_SOURCE_DIR}/bench/network/sends.c)
    set_target_properties(bench_sends PROPERTIES OUTPUT_NAME sends PREFIX "" LIBRARY_OUTPUT_DIRECTORY
                                                                            ${PROJECT_BINARY_DIR}/bench)
    car_compile(bench_sends)
    target_link_libraries(bench_sends PRIVATE ${MPI_C_LIBRARIES})
    add_dependencies(bench bench_sends)
endif()
