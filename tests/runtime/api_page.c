/* The page of a dump, through the public headers: a training step of a decoder takes less than 3 MB; after a profile it
 * shows measured times; call sites show the text of their source lines, but only of files that are source. */
#include "tests/support/api_check.h"
#include "bench/models.h"
#include "tests/support/sanitize.h"
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PAGE = 3000000 }; /* a sanitizer's checks make the kernels' machine code six times as long */

static const char *path_of(const char *name)
{
    static char path[300];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kiln-page-%ld-%s", dir ? dir : "/tmp", (long)getpid(), name);
    return path;
}

/* A file's text; the file is removed.  The caller frees it. */
static char *take(const char *path)
{
    struct stat s;
    FILE *f = fopen(path, "rb");
    char *text = f && !fstat(fileno(f), &s) ? calloc((size_t)s.st_size + 1, 1) : NULL;
    if (!text || fread(text, 1, (size_t)s.st_size, f) != (size_t)s.st_size)
        CHECK(!"the file can be read");
    if (f)
        fclose(f);
    unlink(path);
    return text;
}

static void test_size_and_times(kl_device device)
{
    struct gpt m;
    char *page = NULL;
    if (!CHECK(gpt_open(&m, device, (struct gpt_size){4, 64, 4, 32, 4, 100})) || !CHECK(gpt_step(&m, NULL)))
        return;
    OK(kl_dump("gpt_step", NULL, path_of("a.html")));
    if (!(page = take(path_of("a.html"))))
        return;
    CHECK((strlen(page) < MAX_PAGE || *SANITIZE) && strlen(page) > 100000);
    CHECK(!strstr(page, "\"ns\":\""));
    free(page);
    OK(kl_profile_begin());
    CHECK(gpt_step(&m, NULL) && gpt_step(&m, NULL));
    kl_profile *p = kl_profile_end();
    CHECK(p != NULL);
    OK(kl_dump("gpt_step", NULL, path_of("b.html")));
    if (!(page = take(path_of("b.html"))))
        return;
    CHECK(strstr(page, "\"calls\":\"2\",\"ns\":\""));
    CHECK(strlen(page) < MAX_PAGE || *SANITIZE);
    free(page);
    kl_profile_free(p);
    gpt_close(&m);
}

static void write_file(const char *path)
{
    FILE *f = fopen(path, "w");
    if (CHECK(f != NULL)) {
        fputs("first\n    second line; /* of a source file */\nthird\n", f);
        fclose(f);
    }
}

static void test_source(kl_device device)
{
    char source[300], secret[300];
    snprintf(source, sizeof source, "%s", path_of("user.c"));
    snprintf(secret, sizeof secret, "%s", path_of("user.key"));
    write_file(source);
    write_file(secret);
    /* static: a call site lives as long as the process */
    static kl_site sites[3];
    sites[0] = (kl_site){source, 2, "f"};
    sites[1] = (kl_site){secret, 3, "f"};
    sites[2] = (kl_site){source, 99, "f"};
    kl_tensor u = kl_ones(device, KL_F32, 1, (int64_t[]){4});
    kl_trace_begin("page_sites");
    kl_tensor a = kl_exp_at(&sites[0], u);
    a = kl_tanh_at(&sites[1], a);
    a = kl_neg_at(&sites[2], a);
    OK(kl_dump(NULL, NULL, path_of("c.html")));
    kl_keep(a);
    OK(kl_trace_end());
    char *page = take(path_of("c.html"));
    if (!page)
        return;
    CHECK(strstr(page, "\"second line; /* of a source file */\""));
    CHECK(!strstr(page, "\"third\""));
    free(page);
    kl_release(a);
    kl_release(u);
    unlink(source);
    unlink(secret);
}

int main(void)
{
    kl_device device = kl_device_default();
    test_size_and_times(device);
    test_source(device);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
