/* Kernels' source for a person: the names of arrays, and what a kernel is, as comments in front of it.
 *
 * Names are put into the finished text.  The text that is compiled has the arrays' numbers alone, so that equal kernels
 * are equal texts, whatever the values are called. */
#include "ir/text/kernel_text.h"
#include "source.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The name of a value, or what the kernel's own memory is for. */
static const char *array_word(const struct kernel *k, const struct array_names *names, uint32_t b)
{
    static const char *const own[BUF_COUNT] = {[BUF_SCRATCH] = "scratch", [BUF_WORKSPACE] = "workspace",
                                               [BUF_SHARED] = "shared", [BUF_REGISTER] = "registers",
                                               [BUF_PHASES] = "phases"};
    uint32_t of = k->buf[b].role == BUF_VIEW ? k->buf[b].id : b;
    if (own[k->buf[of].role])
        return own[k->buf[of].role];
    return names && of < kernel_own_buffers(k) ? names->array[of].text : "";
}

/* Appends "b3_NAME" with the name's letters and digits, other characters as one '_': GLSL reserves two in a row. */
static void put_array(struct text *t, const struct kernel *k, const struct array_names *names, const char *letters,
                      uint32_t b)
{
    bool apart = true;
    text_put(t, "%s%u", letters, b);
    for (const char *c = array_word(k, names, b); *c; c++) {
        bool letter = isalnum((unsigned char)*c) && (unsigned char)*c < 0x80;
        if (letter)
            text_put(t, apart ? "_%c" : "%c", *c);
        apart = !letter;
    }
    text_put(t, k->buf[b].role == BUF_VIEW ? "_view" : "");
}

static bool is_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Is the word "b3" or "work3" (source.c) of an lbuf of the kernel? */
static bool names_array(const struct kernel *k, const char *word, size_t len, size_t *letters, uint32_t *b)
{
    *letters = *word == 'b' ? 1 : len > 4 && !strncmp(word, "work", 4) ? 4 : 0;
    if (!*letters || *letters == len || len > *letters + 8 || strspn(word + *letters, "0123456789") < len - *letters)
        return false;
    *b = (uint32_t)strtoul(word + *letters, NULL, 10);
    return *b < k->nbuf;
}

void source_put_named(struct text *out, const struct kernel *k, const struct array_names *names, const char *source)
{
    bool quoted = false; /* inline assembly */
    for (const char *at = source; *at;) {
        size_t len = 0, letters;
        uint32_t b;
        while (is_word_char(at[len]))
            len++;
        if (len && !quoted && names_array(k, at, len, &letters, &b))
            put_array(out, k, names, letters == 1 ? "b" : "work", b);
        else
            text_put(out, "%.*s", (int)(len + !len), at);
        quoted ^= !len && *at == '"';
        at += len + !len;
    }
}

void source_put_title(struct text *out, const struct kernel *k, const struct array_names *names,
                      const struct source_info *info)
{
    text_put(out, "\n// %s\n", k->name);
    if (k->line)
        text_put(out, "// line: %s:%d\n", k->file, k->line);
    if (k->family) {
        text_put(out, "// ");
        record_put(out, k->family, &k->sched);
        text_put(out, "\n");
    }
    text_put(out, "// blocks of %u threads, %" PRId64 " iterations", info->threads, k->extent);
    if (kernel_members(k) > 1)
        text_put(out, " of %u members", kernel_members(k));
    text_put(out, info->shared_bytes ? ", %u bytes of shared memory\n" : "\n", info->shared_bytes);
    for (uint32_t b = 0; b < kernel_own_buffers(k); b++) {
        const struct lbuf *l = &k->buf[b];
        if (l->role == BUF_VIEW)
            continue;
        text_put(out, "//   ");
        put_array(out, k, names, "b", b);
        text_put(out, ": %s %s[%" PRId64 "]\n", role_words.v[l->role], dtype_name(l->dtype), l->count);
    }
}
