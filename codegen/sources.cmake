# Writes OUT, a header with NAME (CODEGEN_SOURCES or GPU_SOURCES): a hash of FILES (separated by |) and of TAG. Run
# with cmake -P.
string(REPLACE "|" ";" files "${FILES}")
set(all "${TAG}")
foreach(file ${files})
    file(SHA256 "${file}" one)
    get_filename_component(name "${file}" NAME)
    string(APPEND all "\n${name} ${one}")
endforeach()
string(SHA256 all "${all}")
string(SUBSTRING "${all}" 0 32 all)
file(WRITE "${OUT}" "#define ${NAME} \"${all}\"\n")
