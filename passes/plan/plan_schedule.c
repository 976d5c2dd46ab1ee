/* Schedules that lowering does not choose: first those found by measuring, each for the groups with its key; then the
 * user's, each for the kernels that have its name in a plan without schedules.
 *
 * Equal kernels of a program are one, with the name of the first; all of them get that schedule.  A kernel is first
 * lowered with Kiln's own schedule, which determines its kind and the fields that set the order of its operations and
 * cannot be chosen.  When it is lowered a second time, its schedule must be exactly the one that was requested. */
#include "plan.h"
#include <inttypes.h>
#include <string.h>

static bool is_lanes(unsigned width) { return width >= 1 && width <= 64 && !(width & (width - 1)); }

struct refusal { const struct sched_section *s; const struct sched_line *l; struct err *e; };

/* Can a product's accumulators have this tile? */
static bool fits_dot(const struct refusal *r, const struct schedule *own)
{
    enum { MAX_TILE_ROWS = 32 };
    const struct schedule *s = &r->l->sched;
    if (!own->block_m && (s->block_m || s->block_n))
        return schedule_refuse(r->s, r->l, FIELD_BLOCK, r->e,
                               "block: the kernel is no product by blocks of a GPU's threads");
    if (!own->block_m && s->step && !own->step)
        return schedule_refuse(r->s, r->l, FIELD_STEP, r->e,
                               "step: the kernel is no product of a few rows with a matrix that is read once");
    if (own->block_m) /* only the lowering knows what fits a block */
        return s->kc == own->kc || schedule_refuse(r->s, r->l, FIELD_KBLOCK, r->e,
                                                   "kblock %u: it is %u, the order of the graph's sums", s->kc,
                                                       own->kc);
    if (s->mr < 1 || s->mr > MAX_TILE_ROWS || !is_lanes(s->nr))
        return schedule_refuse(r->s, r->l, FIELD_TILE, r->e,
                               "a tile has 1 to %d rows and 1, 2, 4 .. 64 columns, not %ux%u",
                               MAX_TILE_ROWS, s->mr, s->nr);
    if (s->width != s->nr)
        return schedule_refuse(r->s, r->l, FIELD_WIDTH, r->e,
                               "width %u: that of a product is the %u columns of its tile",
                               s->width, s->nr);
    if (s->kc != own->kc)
        return schedule_refuse(r->s, r->l, FIELD_KBLOCK, r->e, "kblock %u: it is %u, the order of the graph's sums",
                               s->kc,
                               own->kc);
    return true;
}

static bool fits_lanes(const struct refusal *r, const struct schedule *own)
{
    const struct schedule *s = &r->l->sched;
    bool fixed = own->kind == SCHED_ROW_REDUCE || own->kind == SCHED_ROWS ||
                 (own->kind == SCHED_CUMULATIVE && own->width == 1);
    if (fixed && s->width != own->width)
        return schedule_refuse(r->s, r->l, FIELD_WIDTH, r->e, "width %u: it is %u here, the order of the graph's sums",
                               s->width,
                               own->width);
    if (!fixed && !is_lanes(s->width))
        return schedule_refuse(r->s, r->l, FIELD_WIDTH, r->e, "width %u: it may be 1, 2, 4 .. 64", s->width);
    if (s->block_m || s->block_n || s->step)
        return schedule_refuse(r->s, r->l, s->step ? FIELD_STEP : FIELD_BLOCK, r->e,
                               "block, step: the kernel is no product");
    bool neighbours = own->nr && s->mr == 1 && (s->nr == 2 || s->nr == 4 || s->nr == 8);
    if ((s->mr || s->nr) && !neighbours)
        return schedule_refuse(r->s, r->l, FIELD_TILE, r->e, own->nr ? "tile: a lane has 1x2, 1x4 or 1x8 elements"
                               : "tile: the kernel is no product");
    if (s->kc)
        return schedule_refuse(r->s, r->l, FIELD_KBLOCK, r->e, "kblock: the kernel is no product");
    if (s->pack_b)
        return schedule_refuse(r->s, r->l, FIELD_PACK_B, r->e, "pack_b: the kernel is no product");
    if (s->rows || s->epilogue)
        return schedule_refuse(r->s, r->l, s->rows ? FIELD_ROWS : FIELD_EPILOGUE, r->e,
                               "rows, epilogue: the kernel is no product");
    return true;
}

/* May a kernel whose own record is `own` have the line's? */
static bool plan_schedule_fits(const struct refusal *r, const struct schedule *own)
{
    const struct schedule *s = &r->l->sched;
    char *text = s->kind == own->kind ? NULL : schedule_line(own);
    if (s->kind != own->kind) {
        schedule_refuse(r->s, r->l, FIELD_KIND, r->e, "the kernel's kind is not a choice: its own record is \"%s\"",
                        text ? text : "of another kind");
        mem_free(text);
        return false;
    }
    if (s->stream && s->kind != SCHED_MAP && s->kind != SCHED_ROWS)
        return schedule_refuse(r->s, r->l, FIELD_STREAM, r->e, "stream: only kernels of kind map and rows do that");
    return s->kind == SCHED_DOT ? fits_dot(r, own) : fits_lanes(r, own);
}

/* The kernel of a position, lowered a second time with the line's schedule. */
static bool relower(struct planner *p, uint32_t group, const struct sched_line *line)
{
    struct lowered *l = &p->low[group], again;
    struct refusal r = {p->root->section, line, p->e};
    if (!plan_schedule_fits(&r, &l->k->sched) || !lower_group(p->lowerer, group, &line->sched, &again, p->e))
        return false;
    kernel_free(l->k);
    mem_free(l->arg);
    *l = again;
    struct schedule wanted = line->sched;
    if (!wanted.rows)
        wanted.rows = again.k->sched.rows;
    if (!wanted.epilogue)
        wanted.epilogue = again.k->sched.epilogue;
    if (!memcmp(&again.k->sched, &wanted, sizeof wanted))
        return true;
    char *text = schedule_line(&again.k->sched);
    schedule_refuse(r.s, line, FIELD_KIND, p->e, "the kernel cannot have this schedule; the nearest is \"%s\"",
                    text ? text : "");
    mem_free(text);
    return false;
}

/* The name and the line of a kernel equal to k. */
static struct own_kernel *own_kernel(struct planner *root, const struct kernel *k)
{
    struct hash128 h = kernel_hash(k);
    for (uint32_t i = 0; i < root->nown; i++)
        if (root->own[i].hash.lo == h.lo && root->own[i].hash.hi == h.hi)
            return &root->own[i];
    if (!mem_reserve(&root->own, &root->own_cap, root->nown + 1, sizeof *root->own))
        return plan_no_memory(root), NULL;
    struct own_kernel *o = &root->own[root->nown++];
    *o = (struct own_kernel){.hash = h};
    memcpy(o->name, k->name, sizeof o->name);
    for (uint32_t i = 0; i < root->section->n; i++)
        if (!strcmp(root->section->v[i].kernel, k->name)) {
            o->line = &root->section->v[i];
            root->used[i] = true;
        }
    return o;
}

/* The group's kernel as it was tuned, if lowering can follow that. */
static bool lower_tuned(struct planner *p, uint32_t group)
{
    static const struct sched_section none = {0};
    struct lowered *l = &p->low[group], again;
    struct sched_line line = {0};
    struct err why = {0};
    if (!p->root->tuned->find(p->root->tuned, l->group, &line.sched) ||
        !plan_schedule_fits(&(struct refusal){&none, &line, &why}, &l->k->sched))
        return true;
    if (!lower_group(p->lowerer, group, &line.sched, &again, &why))
        return why.code != KL_ERR_MEMORY || err_set(p->e, KL_ERR_MEMORY, "%s", why.msg);
    bool followed = !memcmp(&again.k->sched, &line.sched, sizeof line.sched);
    struct lowered *unused = followed ? l : &again;
    kernel_free(unused->k);
    mem_free(unused->arg);
    if (followed)
        *l = again;
    return true;
}

bool plan_schedules(struct planner *p)
{
    for (uint32_t group = 0; p->root->tuned && group < p->g->ngroup; group++)
        if (!p->non_fusible[group] && !lower_tuned(p, group))
            return false;
    for (uint32_t pos = 0; p->root->section && pos < p->g->ngroup; pos++) {
        uint32_t group = p->order[pos];
        struct own_kernel *o = p->non_fusible[group] ? NULL : own_kernel(p->root, p->low[group].k);
        if (!o && !p->non_fusible[group])
            return false;
        if (o && o->line && !relower(p, group, o->line))
            return false;
    }
    return true;
}

bool plan_schedules_used(const struct planner *root)
{
    enum { ROOM = 256 };
    const struct sched_section *s = root->section;
    for (uint32_t i = 0; s && i < s->n; i++) {
        char names[ROOM] = "";
        size_t at = 0;
        if (root->used[i])
            continue;
        for (uint32_t k = 0; k < root->nown && at < ROOM; k++)
            at += (size_t)snprintf(names + at, ROOM - at, "%s@%s", k ? ", " : "", root->own[k].name);
        return schedule_refuse(s, &s->v[i], FIELD_NAME, root->e, "graph @%s has no%s kernel @%s; it has %s%s",
                               root->g->name,
                               s->unfused ? " unfused" : "", s->v[i].kernel, *names ? names : "none",
                                   at >= ROOM ? " .." : "");
    }
    return true;
}
