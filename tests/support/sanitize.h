/* The options with which a test compiles and links a program against this build of Kiln. */
#ifndef KILN_SANITIZE_H
#define KILN_SANITIZE_H

#if defined(KILN_ASAN)
#define SANITIZE "-fsanitize=address,undefined"
#elif defined(KILN_TSAN)
#define SANITIZE "-fsanitize=thread"
#else
#define SANITIZE ""
#endif

#endif
