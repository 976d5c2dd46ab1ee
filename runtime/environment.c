/* The environment variables that Kiln reads, and messages about invalid values.  An invalid value has no other effect:
 * the default is used. */
#include "runtime.h"
#include "ir/regular_file.h"
#include <errno.h>
#include <stdlib.h>

extern char **environ;

enum value_kind { ANY_TEXT, THREADS, SWITCH, CHECK_WORDS, DUMP_WORDS, NEW_FOLDER, READABLE_FILE,
                  LOG_SETTING, ORDER_WORD };
static const struct { const char *name; enum value_kind kind; } variables[] = {
#define VARIABLE(name, kind, ...) {#name, kind},
#include "environment.def"
};
enum { VARIABLES = sizeof variables / sizeof *variables };

bool word_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && !strncmp(p, word, n)) return true;
    return false;
}

static bool is_switch(const char *value) { return !strcmp(value, "0") || !strcmp(value, "1"); }

bool environment_switch(const char *name, bool otherwise)
{
    const char *value = getenv(name);
    return value && is_switch(value) ? *value == '1' : otherwise;
}

static bool is_dump_word(const char *w) { return dump_is_stage(w) || word_listed("all,dot,html", w); }

static bool is_check_word(const char *w) { return word_listed("0,1,nan,inf", w); }

/* Are all comma-separated words valid? *wrong: the first one that is not. */
static bool words_are(const char *value, bool (*is_word)(const char *), char *wrong, size_t n)
{
    for (const char *p = value; *p; p += strcspn(p, ","), p += *p == ',') {
        snprintf(wrong, n, "%.*s", (int)strcspn(p, ","), p);
        if (*wrong && !is_word(wrong)) return false;
    }
    return true;
}

/* Writes the error of the value to text; false: the value is valid. */
static bool is_wrong(enum value_kind kind, const char *value, char *text, size_t n)
{
    char word[64];
    struct stat s;
    int64_t size;
    int fd;
    kl_log_level level;
    const char *file;
    switch (kind) {
    case THREADS:
        snprintf(text, n, "it is not a number from 1 to %d; the default is used", POOL_MAX_THREADS);
        return !pool_threads_parse(value);
    case SWITCH:
        snprintf(text, n, "it is neither 0 nor 1");
        return !is_switch(value);
    case ORDER_WORD:
        snprintf(text, n, "it is neither graph nor schedule");
        return option_order_of(value) < 0;
    case CHECK_WORDS:
        if (words_are(value, is_check_word, word, sizeof word)) return false;
        snprintf(text, n, "\"%s\" is none of 1, nan, inf", word);
        return true;
    case DUMP_WORDS:
        if (words_are(value, is_dump_word, word, sizeof word)) return false;
        snprintf(text, n, "\"%s\" is neither a stage (%s) nor all, dot or html", word, dump_stage_names());
        return true;
    case NEW_FOLDER:
        snprintf(text, n, "there is no such folder, and it cannot be made");
        return mkdir(value, 0777) && (stat(value, &s) || !S_ISDIR(s.st_mode));
    case LOG_SETTING:
        if (!log_setting_parse(value, &level, &file)) {
            snprintf(text, n, "it is not LEVEL or LEVEL:FILE with one of the levels debug, info, warn, error, none");
            return true;
        }
        fd = file ? log_file_open(file) : -1;
        if (!file) return false;
        snprintf(text, n, "the file cannot be written: %s", fd < 0 ? strerror(errno) : "");
        if (fd >= 0) close(fd);
        return fd < 0;
    case READABLE_FILE:
        fd = regular_file_open(value, value, 0, &size, text, n);
        if (fd >= 0) close(fd);
        return fd < 0;
    default:
        return false;
    }
}

/* Names that begin with KILN_TEST and similar prefixes belong to the tests. */
static bool environment_is_known(const char *name, size_t len)
{
    static const char *const others[] = {"KILN_TEST", "KILN_BLESS", "KILN_BREAK", "KILN_AS_IT_IS"};
    for (unsigned i = 0; i < VARIABLES; i++)
        if (strlen(variables[i].name) == len && !strncmp(variables[i].name, name, len)) return true;
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        if (!strncmp(name, others[i], strlen(others[i]))) return true;
    return false;
}

void environment_check(void (*say)(void *ctx, const char *text), void *ctx)
{
    char why[512], message[672];
    for (unsigned i = 0; i < VARIABLES; i++) {
        const char *value = getenv(variables[i].name);
        if (!value || !*value || !is_wrong(variables[i].kind, value, why, sizeof why)) continue;
        snprintf(message, sizeof message, "%s=%.100s: %s", variables[i].name, value, why);
        say(ctx, message);
    }
    for (char **p = environ; p && *p; p++) {
        size_t len = strcspn(*p, "=");
        if (strncmp(*p, "KILN_", 5) || environment_is_known(*p, len)) continue;
        snprintf(message, sizeof message, "%.*s is no variable that Kiln reads", len < 100 ? (int)len : 100, *p);
        say(ctx, message);
    }
}

static void say_to_log(void *ctx, const char *text)
{
    (void)ctx;
    log_put(KL_LOG_WARN, "%s", text);
}

void environment_log(void)
{
    static atomic_bool said;
    if (log_wants(KL_LOG_WARN) && !atomic_exchange(&said, true)) environment_check(say_to_log, NULL);
}
