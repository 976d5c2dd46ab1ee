# Writes OUT, a header with the bytes of FILE, one file or several in a list, as an array NAME.  Run with cmake -P.
foreach(file ${FILE})
    file(READ "${file}" part HEX)
    string(APPEND hex "${part}")
endforeach()
string(REGEX REPLACE "(..)" "0x\\1," hex "${hex}")
file(WRITE "${OUT}" "static const char ${NAME}[] = {${hex}0};\n")
