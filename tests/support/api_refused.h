/* Calls that are refused: each gives poison, and the message has the caller's file and line and some texts. */
#ifndef KILN_API_REFUSED_H
#define KILN_API_REFUSED_H
#include "api_check.h"

#define REFUSED(call, code, ...) call_refused(call, code, __FILE__, __LINE__, (const char *[]){__VA_ARGS__, NULL})

static inline void call_refused(kl_tensor t, kl_status code, const char *file, int line, const char *const *text)
{
    char site[160];
    const char *slash = strrchr(file, '/');
    snprintf(site, sizeof site, "%.100s:%d: ", slash ? slash + 1 : file, line);
    bool ok = kl_check(t) == code && strstr(kl_last_error(), site);
    for (int i = 0; text[i]; i++)
        ok &= strstr(kl_last_error(), text[i]) != NULL;
    check_at(ok, line, "an error");
    kl_release(t);
}
#endif
