/* Schedules that lowering does not choose: first those found by measuring, each for the groups with its key; then the
 * user's, each for the kernels that have its name in a plan without schedules.
 *
 * Equal kernels of a program are one, with the name of the first; all of them get that schedule.  A kernel is first
 * lowered with Kiln's own schedule, because its name is found by that.  When it is lowered a second time, it has
 * exactly the record that was requested, with the fields chosen that the record leaves open, or the record is
 * refused. */
#include "plan.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The error for a line whose record is refused; own: the record that the kernel has without it. */
static bool refuse_line(struct planner *p, const struct sched_line *line, const struct err *r,
                        const struct schedule *own)
{
    const struct sched_section *section = p->root->section;
    if (r->field)
        return schedule_refuse(section, line,
                               COLUMN_FIELDS + sched_field_find(&sched_families[line->sched.kind], r->field), p->e,
                               "%s", r->msg);
    char *text = schedule_line(own);
    schedule_refuse(section, line, COLUMN_KIND, p->e, "%s: its own record is \"%s\"", r->msg,
                    text ? text : "of another kind");
    mem_free(text);
    return false;
}

/* The kernel of a position, lowered a second time with the line's schedule. */
static bool plan_relower_group(struct planner *p, uint32_t group, const struct sched_line *line)
{
    struct lowered *l = &p->low[group], again;
    struct err e = {0};
    if (!lower_group(p->lowerer, group, &line->sched, &again, &e))
        return e.code == KL_ERR_ARGUMENT ? refuse_line(p, line, &e, schedule_of(l->k))
                                         : err_set(p->e, e.code, "%s", e.msg);
    mem_free(l->arg);
    *l = again;
    return plan_share_kernel(p, group);
}

static int by_kernel(const void *a, const void *b)
{
    const struct sched_line *const *x = a, *const *y = b;
    int order = strcmp((*x)->kernel, (*y)->kernel);
    return order ? order : (*x > *y) - (*x < *y);
}

/* Sorts the section's lines by the names of their kernels; those of one kernel stay in their order. */
static bool sort_lines(struct planner *root)
{
    const struct sched_section *s = root->section;
    if (!(root->line = mem_alloc((s->n + 1) * sizeof *root->line)))
        return plan_no_memory(root);
    for (uint32_t i = 0; i < s->n; i++)
        root->line[i] = &s->v[i];
    if (s->n)
        qsort(root->line, s->n, sizeof *root->line, by_kernel);
    return true;
}

/* The last line of the section for a kernel; marks all that there are as used. */
static const struct sched_line *line_of(struct planner *root, const char *kernel)
{
    uint32_t lo = 0, hi = root->section->n;
    const struct sched_line *found = NULL;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (strcmp(root->line[mid]->kernel, kernel) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < root->section->n && !strcmp(root->line[lo]->kernel, kernel); lo++) {
        found = root->line[lo];
        root->used[found - root->section->v] = true;
    }
    return found;
}

/* The line for a group whose kernel is that of an earlier one: the line for its own name, else the earlier one's.
 * Which groups come first depends on the loops that are one kernel, and so on schedules; and a group that is part of a
 * launch of several has its name there, while an equal kernel elsewhere is named by another group.  NULL: there is
 * none. */
static const struct sched_line *line_of_group(struct planner *p, uint32_t group, struct own_kernel *o)
{
    struct kernel named = {0};
    lower_name(p->lowerer, group, &named);
    const struct sched_line *line = line_of(p->root, named.name);
    o->line = o->line ? o->line : line;
    return line ? line : o->line;
}

/* The name of the group's kernel, which it has from the first group with an equal one, and *line for the group. */
static struct own_kernel *own_kernel(struct planner *p, uint32_t group, const struct sched_line **line)
{
    struct planner *root = p->root;
    struct plan_kernel *x = &root->kernel[p->shared[group]];
    if (x->own) {
        *line = line_of_group(p, group, &root->own[x->own - 1]);
        return &root->own[x->own - 1];
    }
    if ((!root->line && !sort_lines(root)) ||
        !mem_reserve(&root->own, &root->own_cap, root->nown + 1, sizeof *root->own))
        return plan_no_memory(p), NULL;
    struct own_kernel *o = &root->own[root->nown++];
    x->own = root->nown;
    lower_name(p->lowerer, group, x->k);
    memcpy(o->name, x->k->name, sizeof o->name);
    *line = o->line = line_of(root, o->name);
    return o;
}

/* The group's kernel as it was tuned, if its schedule is legal here. */
static bool lower_tuned(struct planner *p, uint32_t group)
{
    struct lowered *l = &p->low[group], again;
    struct schedule s;
    struct err why = {0};
    if (!p->root->tuned->find(p->root->tuned, l->group, &s) || s.kind >= SCHED_COUNT)
        return true;
    if (!lower_group(p->lowerer, group, &s, &again, &why))
        return why.code != KL_ERR_MEMORY || err_set(p->e, KL_ERR_MEMORY, "%s", why.msg);
    mem_free(l->arg);
    *l = again;
    return plan_share_kernel(p, group);
}

/* A region op or a copy has no schedule, nor has a loop that is one kernel: the kernels of its body had theirs. */
static bool has_schedule(const struct planner *p, uint32_t group)
{
    return !p->non_fusible[group] && p->low[group].k->family;
}

bool plan_schedules(struct planner *p)
{
    for (uint32_t group = 0; p->root->tuned && group < p->g->ngroup; group++)
        if (has_schedule(p, group) && !lower_tuned(p, group))
            return false;
    for (uint32_t pos = 0; p->root->section && pos < p->g->ngroup; pos++) {
        uint32_t group = p->order[pos];
        bool has = has_schedule(p, group);
        const struct sched_line *line = NULL;
        if (has && !own_kernel(p, group, &line))
            return false;
        if (line && !plan_relower_group(p, group, line))
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
        return schedule_refuse(s, &s->v[i], COLUMN_NAME, root->e, "graph @%s has no%s kernel @%s; it has %s%s",
                               root->g->name,
                               s->unfused ? " unfused" : "", s->v[i].kernel, *names ? names : "none",
                                   at >= ROOM ? " .." : "");
    }
    return true;
}
