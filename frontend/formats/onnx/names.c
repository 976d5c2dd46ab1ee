/* Tables of strings: names of values, and the strings of call sites. */
#include "onnx.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t names_hash(const char *s)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * UINT64_C(1099511628211);
    return h ^ h >> 29;
}

uint32_t onnx_names_find(const struct names *s, const char *name)
{
    for (uint64_t i = names_hash(name); s->cap; i++) {
        uint32_t at = (uint32_t)(i & (s->cap - 1));
        if (!s->key[at])
            break;
        if (!strcmp(s->key[at], name))
            return s->at[at];
    }
    return NO_PLACE;
}

static void names_place(struct names *s, const char *name, uint32_t number)
{
    uint64_t i = names_hash(name);
    while (s->key[i & (s->cap - 1)])
        i++;
    s->key[i & (s->cap - 1)] = name;
    s->at[i & (s->cap - 1)] = number;
}

bool onnx_names_put(struct names *s, const char *name, uint32_t at)
{
    if (2 * (s->n + 1) > s->cap) {
        struct names more = {.cap = s->cap ? 2 * s->cap : 16};
        more.key = calloc(more.cap, sizeof *more.key);
        more.at = calloc(more.cap, sizeof *more.at);
        if (!more.key || !more.at) {
            onnx_names_free(&more);
            return false;
        }
        for (uint32_t i = 0; i < s->cap; i++)
            if (s->key[i])
                names_place(&more, s->key[i], s->at[i]);
        more.n = s->n;
        onnx_names_free(s);
        *s = more;
    }
    names_place(s, name, at);
    s->n++;
    return true;
}

void onnx_names_free(struct names *s)
{
    free(s->key);
    free(s->at);
    *s = (struct names){0};
}

const char *string_forever(const char *s)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct names all;
    static const char **text;
    static uint32_t ntext, cap;
    const char *found = "";
    pthread_mutex_lock(&lock);
    uint32_t at = onnx_names_find(&all, s);
    if (at != NO_PLACE) {
        found = text[at];
    } else {
        uint32_t room = ntext < cap ? cap : cap ? 2 * cap : 64;
        const char **more = room > cap ? realloc(text, room * sizeof *text) : text;
        char *copy = more ? strdup(s) : NULL;
        if (more) {
            text = more;
            cap = room;
        }
        if (copy && onnx_names_put(&all, copy, ntext))
            found = text[ntext++] = copy;
        else
            free(copy);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

const kl_site *site_forever(const char *file, int line, const char *func)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct names all;
    static kl_site **site;
    static uint32_t nsite, cap;
    static const kl_site none = {"", 0, ""};
    const kl_site *found = &none;
    char key[600];
    snprintf(key, sizeof key, "%d %s", line, file);
    const char *name = string_forever(key);
    const kl_site value = {name + strcspn(name, " ") + (*name != 0), line, string_forever(func)};
    pthread_mutex_lock(&lock);
    uint32_t at = onnx_names_find(&all, name);
    if (at != NO_PLACE) {
        found = site[at];
    } else {
        uint32_t room = nsite < cap ? cap : cap ? 2 * cap : 64;
        kl_site **more = room > cap ? realloc(site, room * sizeof *site) : site;
        kl_site *copy = more ? malloc(sizeof *copy) : NULL;
        if (more) {
            site = more;
            cap = room;
        }
        if (copy && onnx_names_put(&all, name, nsite)) {
            *copy = value;
            found = site[nsite++] = copy;
        } else {
            free(copy);
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}
