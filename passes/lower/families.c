/* The tables of the families of kernels, made of their rows in families.def, and the selection of one for a group. */
#include "lower_schedule.h"
#include <stddef.h>

static const char *const sched_epilogue_names[EPILOGUE_COUNT] = {
    [EPILOGUE_IN_TILE] = "in_tile", [EPILOGUE_AFTER_TILE] = "after_tile", [EPILOGUE_AFTER_ROWS] = "after_rows",
    [EPILOGUE_DURING_NEXT] = "during_next"};
static const char *const sched_pack_names[PACK_COUNT] = {
    [PACK_ROWS] = "rows", [PACK_SQUARES] = "squares", [PACK_ELEMENTS] = "elements",
    [PACK_COLUMN_RUNS] = "column_runs", [PACK_STEP_RUNS] = "step_runs"};

#define AT(member) .offset = offsetof(struct schedule, member), .size = sizeof((struct schedule *)0)->member
#define VALUE(word_, member, kind, low, high) .word = word_, .form = kind, AT(member), .min = low, .max = high
#define COMMON(family, fields) static const struct sched_field family##_fields[] = {fields};
#define FIELDS(family) static const struct sched_field family##_fields[] = {
#define END(family) };
#define WIDTH {VALUE("width", width, FORM_NUMBER, 1, 64), .chosen = true, .power = true},
#define GPU_WIDTH {VALUE("width", width, FORM_NUMBER, 1, MAX_GPU_VECTOR), .chosen = true, .power = true},
#define THREADS {VALUE("width", width, FORM_NUMBER, 1, MAX_THREADS), .chosen = true},
#define STREAM {VALUE("stream", stream, FORM_FLAG, 0, 1)},
#define GRAIN {VALUE("grain", grain, FORM_NUMBER, 0, INT64_MAX)},
#define KBLOCK(family) {VALUE("kblock", family.kc, FORM_NUMBER, 0, UINT32_MAX)},
#define MEMBER(family, type, name)
#define NUMBER(family, type, word, low, high) {VALUE(#word, family.word, FORM_NUMBER, low, high)},
#define FLAG(family, type, word) {VALUE(#word, family.word, FORM_FLAG, 0, 1)},
#define POWER(family, type, word, high) {VALUE(#word, family.word, FORM_NUMBER, 0, high), .power = true},
#define CHOSEN(family, type, word, high) {VALUE(#word, family.word, FORM_NUMBER, 1, high), .chosen = true},
#define LANES(family, type, word, high) \
    {VALUE(#word, family.word, FORM_NUMBER, 1, high), .chosen = true, .power = true},
#define NAMED(family, type, word, high, names) \
    {VALUE(#word, family.word, FORM_WORD, 1, high), .chosen = true, .name = names},
#define SET(family, type, word) {VALUE(#word, family.word, FORM_SET, 0, 8 * sizeof(type) - 1)},
#define SIDES(family, type, word, a, b, high) {VALUE(#word, family.a, FORM_SIDES, 1, high), .sides = 2},
#define UNIT(family) {VALUE("unit", family.unit_m, FORM_SIDES, 1, MAX_TILE_SIDE), .sides = 3, .chosen = true},
#define TILE(family) {VALUE("tile", family.mr, FORM_SIDES, 1, MAX_TILE_SIDE), .sides = 2},
#include "families.def"

const struct sched_family sched_families[SCHED_COUNT] = {
#define FAMILY(KIND, family, group, fits, legal, propose) \
    [SCHED_##KIND] = {#family, family##_fields, sizeof family##_fields / sizeof *family##_fields},
#include "families.def"
};
const struct sched_families lower_families = {sched_families, SCHED_COUNT};

#define COMMON(family, fields)
#define FIELDS(family) \
    _Static_assert(sizeof family##_fields / sizeof *family##_fields <= MAX_SCHED_FIELDS, "each field has a column"); \
    _Static_assert(sizeof(struct schedule) == sizeof(struct sched_record), "the members have room");
#define END(family)
#include "families.def"

/* ---- selecting ---- */

/* A family's functions, by pointers of one type each. */
struct family_functions {
    enum group_kind group;
    bool (*fits)(void *facts); /* NULL: always */
    bool (*choose)(void *facts, struct schedule *s);
    bool (*legal)(const void *facts, const struct schedule *s); /* NULL: any record */
    void (*emit)(void *group, const struct schedule *s);
};
#define FAMILY(KIND, word, group, fits, legal, propose) \
    DECLARE_##fits(static bool call_##word##_fits(void *f) { return word##_fits(f); }) \
    static bool call_##word##_choose(void *f, struct schedule *s) { return word##_choose(f, s); } \
    DECLARE_##legal(static bool call_##word##_legal(const void *f, const struct schedule *s) \
                    { return word##_legal(f, s); }) \
    static void call_##word##_emit(void *g, const struct schedule *s) { word##_emit(g, s); }
#include "families.def"

static const struct family_functions family_functions[SCHED_COUNT] = {
#define POINTER_fits(f) f
#define POINTER_legal(f) f
#define POINTER_always(f) NULL
#define POINTER_any(f) NULL
#define FAMILY(KIND, word, group, fits, legal, propose) \
    {GROUP_##group, POINTER_##fits(call_##word##_fits), call_##word##_choose, POINTER_##legal(call_##word##_legal), \
     call_##word##_emit},
#include "families.def"
};

/* The family of the user-supplied record, or the last one that fits and is not slower than one before it; NULL: none.
 * *s: its record.  *legal: a user-supplied one has not been refused. */
static const struct family_functions *family_find(const struct lowering *w, enum group_kind kind, void *facts,
                                                  struct schedule *s, bool *legal)
{
    const struct schedule *want = w->chooser->want;
    for (unsigned i = SCHED_COUNT; i-- > 0;) {
        const struct family_functions *f = &family_functions[i];
        if (f->group != kind || (want && want->kind != i) || (f->fits && !f->fits(facts)))
            continue;
        *s = want ? *want : (struct schedule){.kind = (uint16_t)i};
        s->graph_order = in_graph_order(w); /* a choosing function may lower the group for a trial */
        *legal = f->choose(facts, s);
        s->graph_order = in_graph_order(w);
        if (want || *legal)
            return f;
    }
    return NULL;
}

void select_family(struct lowering *w, enum group_kind kind, void *facts, void *group)
{
    const struct chooser *c = w->chooser;
    struct schedule s = c->want ? *c->want : (struct schedule){0};
    bool legal = false;
    const struct family_functions *f = family_find(w, kind, facts, &s, &legal);
    if (!f)
        reject_schedule(w, NULL, "the kernel's kind is not a choice");
    legal = legal && graph_order_legal(w) && (!f->legal || f->legal(facts, &s)) &&
            (!c->want || sched_in_range(&sched_families[s.kind], &s.record, &w->k->err));
    schedule_set(w->k, &s.record);
    if (!legal)
        reject_schedule(w, NULL, "the kernel cannot have the record");
    else if (!w->k->err.code)
        f->emit(group, &s);
}
