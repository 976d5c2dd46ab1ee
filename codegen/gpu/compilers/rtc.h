/* The interface that NVRTC and hiprtc share: the same functions with different names. */
#ifndef KILN_RTC_H
#define KILN_RTC_H
#include "compile.h"
#include <pthread.h>

typedef struct rtc_program *rtc_program;
typedef int rtc_result; /* 0: success */
typedef rtc_result rtc_size(rtc_program p, size_t *size);
typedef rtc_result rtc_text(rtc_program p, char *out);

struct rtc {
    const char *name;               /* used in messages */
    const char *file;               /* name of the source for the compiler */
    const char *const *option;      /* options besides the architecture, at most RTC_OPTIONS; ends with NULL */
    void (*open)(void);             /* sets the functions, or `failure` */
    pthread_once_t once;
    struct err failure;
    rtc_result (*version)(int *major, int *minor);
    rtc_result (*create)(rtc_program *p, const char *source, const char *file, int headers, const char *const *header,
                         const char *const *include);
    rtc_result (*compile)(rtc_program p, int n, const char *const *option);
    rtc_size *log_size, *binary_size, *assembly_size; /* assembly: NULL if there is none */
    rtc_text *log, *binary, *assembly;
    rtc_result (*destroy)(rtc_program *p);
};
enum { RTC_OPTIONS = 7 };

/* ---- rtc.c: gpu_compiler's two functions ---- */
bool rtc_version(struct rtc *c, char *out, size_t size, struct err *e);
bool rtc_compile(struct rtc *c, const char *source, const char *arch, enum gpu_output what, struct code *out,
                 struct err *e);

#endif
