/* Kernels as text: one instruction a line, loops indented, the schedule record in the head.  kernel_parse.c is the
 * inverse.  Constants have no line: they are written where they are used. */
#include "kernel_text.h"
#include <inttypes.h>

struct kernel_printer {
    struct text *t;
    const struct kernel *k;
};

static void kernel_text_operand(const struct kernel_printer *p, val v)
{
    const struct linst *i = &p->k->inst[v];
    if (i->op != L_CONST) {
        text_put(p->t, "%%%u", v);
        return;
    }
    text_literal(p->t, i->dtype, i->imm);
    if (i->dtype != KL_I64)
        text_put(p->t, ":%s", dtype_name(i->dtype));
}

static void kernel_text_operands(const struct kernel_printer *p, const struct linst *i)
{
    const val v[3] = {i->a, i->b, i->c};
    for (int j = 0; j < 3 && v[j]; j++) {
        text_put(p->t, j ? ", " : " ");
        kernel_text_operand(p, v[j]);
    }
}

static void print_clause(const struct kernel_printer *p, const char *word, val v)
{
    if (!v)
        return;
    text_put(p->t, " %s ", word);
    kernel_text_operand(p, v);
}

static void kernel_text_place(const struct kernel_printer *p, const struct linst *i)
{
    text_put(p->t, " b%" PRIu64 "[", i->imm);
    kernel_text_operand(p, i->a);
    if (i->d) {
        text_put(p->t, i->kind == TILE_COLS ? " across " : " by ");
        kernel_text_operand(p, i->d);
    }
    text_put(p->t, "]");
}

static void print_inst_type(const struct kernel_printer *p, const struct linst *i)
{
    text_put(p->t, " : %s%s", i->varying ? "*" : "", dtype_name(i->dtype));
    if (i->cols)
        text_put(p->t, "[%ux%u]", i->rows, i->cols);
}

static void kernel_text_copy(const struct kernel_printer *p, const struct linst *i)
{
    text_put(p->t, "copy %u b%u[", i->rows, (uint32_t)i->imm);
    kernel_text_operand(p, i->a);
    text_put(p->t, "] = b%u[", (uint32_t)(i->imm >> 32));
    kernel_text_operand(p, i->b);
    text_put(p->t, "]");
    print_clause(p, "if", i->c);
}

static void kernel_text_panel(const struct kernel_printer *p, const struct linst *i)
{
    const val at[VIEW_DIMS] = {i->b, i->c, i->d};
    text_put(p->t, "copy panel b%u[", (uint32_t)i->imm);
    kernel_text_operand(p, i->a);
    text_put(p->t, "] = b%u[", (uint32_t)(i->imm >> 32));
    for (unsigned d = 0; d < VIEW_DIMS; d++) {
        text_put(p->t, d ? ", " : "");
        kernel_text_operand(p, at[d]);
    }
    text_put(p->t, "]");
}

static void kernel_text_phase(const struct kernel_printer *p, const struct linst *i)
{
    text_put(p->t, "%s b%u[", i->op == L_ARRIVE ? "arrive" : "await", (uint32_t)i->imm);
    kernel_text_operand(p, i->a);
    text_put(p->t, "]");
    if (i->op == L_ARRIVE && i->imm >> 32)
        text_put(p->t, " panels %" PRIu64, i->imm >> 32);
    print_clause(p, "phases", i->b);
}

/* What an instruction stores, and where. */
static void print_assignment(const struct kernel_printer *p, const struct linst *i)
{
    kernel_text_place(p, i);
    print_clause(p, "=", i->b);
    print_clause(p, "if", i->c);
}

/* Instructions without a value. */
static bool print_effect(const struct kernel_printer *p, const struct linst *i)
{
    switch (i->op) {
    case L_IF:
        text_put(p->t, "if");
        kernel_text_operands(p, i);
        if (i->imm)
            text_put(p->t, " registers %" PRIu64, i->imm);
        text_put(p->t, " {");
        return true;
    case L_NEXT:
        text_put(p->t, "next");
        kernel_text_operands(p, i);
        return true;
    case L_END:
        text_put(p->t, "}");
        return true;
    case L_STORE:
        text_put(p->t, "store");
        print_assignment(p, i);
        return true;
    case L_PREFETCH:
        text_put(p->t, "prefetch %s", prefetch_words.v[i->kind]);
        kernel_text_place(p, i);
        return true;
    case L_ATOMIC:
        text_put(p->t, "atomic %s", fold_words.v[i->kind]);
        print_assignment(p, i);
        return true;
    case L_PUBLISH:
        text_put(p->t, "publish");
        print_assignment(p, i);
        return true;
    case L_COPY:
        kernel_text_copy(p, i);
        return true;
    case L_COPY_PANEL:
        kernel_text_panel(p, i);
        return true;
    case L_ARRIVE:
    case L_AWAIT:
        kernel_text_phase(p, i);
        return true;
    case L_WAIT:
        text_put(p->t, i->kind == ASYNC_COPIES ? "wait %" PRIu64 : "wait products %" PRIu64, i->imm);
        return true;
    case L_COMMIT:
        text_put(p->t, i->kind == ASYNC_COPIES ? "commit" : "commit products");
        return true;
    case L_BARRIER:
    case L_SYNC:
        text_put(p->t, i->op == L_BARRIER ? "barrier" : "sync");
        if (i->imm)
            text_put(p->t, " %" PRIu64, i->imm);
        return true;
    default:
        return false;
    }
}

static void print_statement(const struct kernel_printer *p, val v)
{
    const struct linst *i = &p->k->inst[v];
    if (print_effect(p, i))
        return;
    text_put(p->t, "%%%u = ", v);
    switch (i->op) {
    case L_LOOP:
        text_put(p->t, "loop %s ", loop_words.v[i->kind]);
        kernel_text_operand(p, i->a);
        print_clause(p, "to", i->b);
        if (i->imm != 1)
            text_put(p->t, " step %" PRIu64, i->imm);
        if (i->rows && i->kind != LOOP_BLOCK)
            text_put(p->t, " in_order");
        else if (i->rows)
            text_put(p->t, " subgroups %u", i->rows);
        text_put(p->t, " {");
        return;
    case L_LOAD:
    case L_RECEIVE:
        text_put(p->t, i->op == L_LOAD ? "load" : "receive");
        kernel_text_place(p, i);
        print_clause(p, "if", i->b);
        break;
    case L_ALIAS:
        text_put(p->t, "alias b%u, b%u", (uint32_t)i->imm, (uint32_t)(i->imm >> 32));
        break;
    case L_SLOT:
        text_put(p->t, "slot %u", slot_number(i));
        if (slot_max(i))
            text_put(p->t, " max %" PRId64, slot_max(i));
        break;
    case L_LANE_REDUCE:
        text_put(p->t, "lane_reduce %s", fold_words.v[i->imm]);
        kernel_text_operands(p, i);
        break;
    case L_INTERLEAVE:
        text_put(p->t, "interleave %s %" PRIu64, interleave_words.v[i->kind], i->imm);
        kernel_text_operands(p, i);
        break;
    case L_INDEX:
        text_put(p->t, "index %s", tile_words.v[i->kind]);
        break;
    case L_COLUMNS:
        text_put(p->t, "columns %" PRIu64, i->imm);
        kernel_text_operands(p, i);
        break;
    case L_MMA:
        text_put(p->t, "mma %s", mma_words.v[i->kind]);
        kernel_text_operands(p, i);
        break;
    case L_CARRY:
    case L_OUT:
    case L_SPLAT:
        text_put(p->t, i->op == L_CARRY ? "carry" : i->op == L_OUT ? "out" : "splat");
        kernel_text_operands(p, i);
        break;
    default:
        text_put(p->t, "%s", prim_words.v[i->op - L_PRIM]);
        kernel_text_operands(p, i);
    }
    print_inst_type(p, i);
}

static void put_view(const struct kernel_printer *p, const struct lbuf *l)
{
    text_put(p->t, " first %" PRId64, l->first);
    for (unsigned d = 0; d < VIEW_DIMS; d++)
        text_put(p->t, "%s %" PRId64, d ? "" : " size", l->size[d]);
    for (unsigned d = 0; d < VIEW_DIMS; d++)
        text_put(p->t, "%s %" PRId64, d ? "" : " step", l->step[d]);
}

static void print_kernel_head(const struct kernel_printer *p)
{
    const struct kernel *k = p->k;
    text_put(p->t, "kernel @");
    if (is_name(k->name))
        text_put(p->t, "%s", k->name);
    else
        text_quoted(p->t, k->name);
    text_put(p->t, " {\n");
    if (k->family) {
        text_put(p->t, "  ");
        record_put(p->t, k->family, &k->sched);
        text_put(p->t, "\n");
    } else if (k->sched.grain) { /* a loop that is one kernel has no record but this */
        text_put(p->t, "  grain %" PRId64 "\n", k->sched.grain);
    }
    text_put(p->t, "  estimate %" PRId64 " flops %" PRId64 " bytes\n", k->flops, k->bytes);
    if (kernel_members(k) > 1)
        text_put(p->t, "  members %u\n", k->members);
    for (uint32_t b = 0; b < k->nbuf; b++) {
        const struct lbuf *l = &k->buf[b];
        text_put(p->t, "  b%u = %s", b, role_words.v[l->role]);
        if (l->panel_rows)
            text_put(p->t, " panels %ux%u", l->panel_rows, l->id);
        else if (l->id && l->role == BUF_SHARED)
            text_put(p->t, " over %u", l->id - 1);
        else if (l->id || l->role == BUF_IN || l->role == BUF_OUT || l->role == BUF_VIEW)
            text_put(p->t, " %u", l->id);
        if (l->role == BUF_VIEW)
            put_view(p, l);
        text_put(p->t, " : %s[%" PRId64 "]\n", dtype_name(l->dtype), l->count);
    }
}

char *kernel_text(const struct kernel *k)
{
    struct text t = {0};
    struct kernel_printer p = {&t, k};
    int depth = 1;
    print_kernel_head(&p);
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_CONST)
            continue;
        depth -= i->op == L_END;
        text_put(&t, "%*s", 2 * depth, "");
        print_statement(&p, v);
        text_put(&t, "\n");
        depth += i->op == L_LOOP || i->op == L_IF;
    }
    text_put(&t, "}\n");
    return text_take(&t);
}

bool kernel_print(const struct kernel *k, FILE *f) { return text_print(kernel_text(k), f); }
