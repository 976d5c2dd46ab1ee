/* Fields of scheduling records, by the tables of the families. */
#include "sched_record.h"
#include <inttypes.h>
#include <string.h>

uint64_t sched_get(const struct sched_record *s, const struct sched_field *f, unsigned side)
{
    const char *at = (const char *)s + f->offset + side * f->size;
    uint8_t v8;
    uint16_t v16;
    uint32_t v32;
    uint64_t v64;
    switch (f->size) {
    case 1: return memcpy(&v8, at, sizeof v8), v8;
    case 2: return memcpy(&v16, at, sizeof v16), v16;
    case 4: return memcpy(&v32, at, sizeof v32), v32;
    default: return memcpy(&v64, at, sizeof v64), v64;
    }
}

void sched_set(struct sched_record *s, const struct sched_field *f, unsigned side, uint64_t v)
{
    char *at = (char *)s + f->offset + side * f->size;
    switch (f->size) {
    case 1: memcpy(at, &(uint8_t){(uint8_t)v}, 1); break;
    case 2: memcpy(at, &(uint16_t){(uint16_t)v}, 2); break;
    case 4: memcpy(at, &(uint32_t){(uint32_t)v}, 4); break;
    default: memcpy(at, &v, 8); break;
    }
}

uint32_t sched_field_find(const struct sched_family *family, const char *word)
{
    for (uint32_t i = 0; i < family->n; i++)
        if (!strcmp(family->field[i].word, word))
            return i;
    return MAX_SCHED_FIELDS;
}

static bool number_in_range(const struct sched_field *f, uint64_t v)
{
    return (f->chosen && !v) ||
           (v >= (uint64_t)f->min && v <= (uint64_t)f->max && (!f->power || !(v & (v - 1))));
}

static bool refuse_number(const struct sched_field *f, uint64_t v, struct err *e)
{
    if (f->power)
        err_set(e, KL_ERR_ARGUMENT, "%s %" PRIu64 ": it may be %s1, 2, 4 .. %" PRId64, f->word, v, f->min ? "" : "0, ",
                f->max);
    else
        err_set(e, KL_ERR_ARGUMENT, "%s %" PRIu64 ": it may be %" PRId64 " to %" PRId64, f->word, v, f->min, f->max);
    e->field = f->word;
    return false;
}

bool sched_in_range(const struct sched_family *family, const struct sched_record *s, struct err *e)
{
    for (uint32_t i = 0; i < family->n; i++) {
        const struct sched_field *f = &family->field[i];
        for (unsigned side = 0; f->form != FORM_SET && side < (f->sides ? f->sides : 1u); side++)
            if (!number_in_range(f, sched_get(s, f, side)))
                return refuse_number(f, sched_get(s, f, side), e);
    }
    return true;
}
