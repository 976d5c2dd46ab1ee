/* Other records of a group's kernel, for tests: see schedule_vary.h.  The families are those of families.def. */
#include "schedule_vary.h"

/* A number that the field may be given: near the limits, and near what it is. */
static uint64_t field_value(struct rng *r, const struct sched_field *f, uint64_t now)
{
    if (f->form == FORM_FLAG)
        return !now;
    if (f->form == FORM_SET)
        return now ^ UINT64_C(1) << rng_below(r, 8);
    if (f->form == FORM_WORD)
        return (uint64_t)(f->min + rng_below(r, f->max - f->min + 1));
    if (f->power)
        return UINT64_C(1) << rng_below(r, f->max >= 64 && rng_below(r, 2) ? 7 : 4);
    switch (rng_below(r, 9)) {
    case 8: return (uint64_t)f->max;
    case 0: return now + 1;
    case 1: return now ? now - 1 : 1;
    case 2: return 2 * now;
    case 3: return now / 2;
    case 4: return (uint64_t)f->min;
    case 5: return UINT64_C(1) << rng_below(r, 8);
    default: return (uint64_t)(1 + rng_below(r, 9));
    }
}

struct schedule schedule_vary(struct rng *r, const struct schedule *own)
{
    struct schedule s = *own;
    const struct sched_family *family = &sched_families[s.kind];
    uint64_t changed = 0;
    unsigned n = rng_below(r, 3) ? 1 : 2 + (unsigned)rng_below(r, 3);
    for (unsigned i = 0; i < n; i++) {
        uint32_t number = (uint32_t)rng_below(r, family->n);
        const struct sched_field *f = &family->field[number];
        changed |= UINT64_C(1) << number;
        for (unsigned side = 0; side < (f->sides ? f->sides : 1u); side++)
            if (side == 0 ? f->sides < 2 || rng_below(r, 3) : rng_below(r, 3))
                sched_set(&s.record, f, side, field_value(r, f, sched_get(&s.record, f, side)));
    }
    if (rng_below(r, 3))
        for (uint32_t i = 0; i < family->n; i++)
            for (unsigned side = 0; family->field[i].chosen && !(changed >> i & 1) &&
                                    side < (family->field[i].sides ? family->field[i].sides : 1u); side++)
                sched_set(&s.record, &family->field[i], side, 0);
    return s;
}

enum group_kind schedule_group(unsigned kind)
{
    static const unsigned char group_of[SCHED_COUNT] = {
#define FAMILY(KIND, word, group, fits, legal, propose) [SCHED_##KIND] = GROUP_##group,
#include "passes/lower/families.def"
    };
    return (enum group_kind)group_of[kind];
}

unsigned schedule_other_kind(struct rng *r, unsigned kind)
{
    unsigned other[SCHED_COUNT], n = 0;
    for (unsigned k = 0; k < SCHED_COUNT; k++)
        if (k != kind && schedule_group(k) == schedule_group(kind))
            other[n++] = k;
    return n ? other[rng_below(r, n)] : kind;
}
