# find_package(kiln): kiln::kiln (the library), kiln::aot (the runtime of programs compiled ahead of time),
# kiln::command, and the function kiln_add_object.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/kiln-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/kiln-object.cmake)
