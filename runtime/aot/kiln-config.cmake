# find_package(kiln): kiln::kiln (the library), kiln::aot (the runtime of programs compiled ahead of time),
# kiln::command, and the function kiln_add_object.  find_package(kiln COMPONENTS train solve onnx): also kiln::train,
# kiln::solve and kiln::onnx, which link kiln::kiln.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/kiln-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/kiln-object.cmake)
foreach(component ${kiln_FIND_COMPONENTS})
    include(${CMAKE_CURRENT_LIST_DIR}/kiln-${component}-targets.cmake OPTIONAL RESULT_VARIABLE kiln_${component}_FOUND)
    if(NOT kiln_${component}_FOUND AND kiln_FIND_REQUIRED_${component})
        set(kiln_FOUND FALSE)
        set(kiln_NOT_FOUND_MESSAGE "kiln has no component ${component}: it has train, solve and onnx")
    endif()
endforeach()
