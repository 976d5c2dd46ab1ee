/* Kernels as text, for people: one instruction a line, loops indented, the schedule record in the head. */
#include "loop.h"
#include <inttypes.h>

static const char *const prim_name[P_COUNT] = {
#define PRIM(NAME, name, ...) [P_##NAME] = #name,
#include "prims.def"
};
static const char *const loop_name[] = {[LOOP_SERIAL] = "serial", [LOOP_PARALLEL] = "parallel", [LOOP_VECTOR] = "vector"};
static const char *const fold_name[] = {[FOLD_ADD] = "add", [FOLD_MAX] = "max", [FOLD_MIN] = "min", [FOLD_MUL] = "mul"};
static const char *const role_name[] = {[BUF_IN] = "in", [BUF_OUT] = "out", [BUF_SCRATCH] = "scratch"};
static const char *const sched_name[] = {[SCHED_MAP] = "map", [SCHED_ROW_REDUCE] = "row_reduce", [SCHED_COLUMN_REDUCE] = "column_reduce",
                                         [SCHED_DOT] = "dot", [SCHED_SCATTER] = "scatter", [SCHED_ROWS] = "rows",
                                         [SCHED_CUMULATIVE] = "cumulative", [SCHED_SORT] = "sort"};

/* An operand: constants stand where they are used. */
static void operand(const struct kernel *k, val v, FILE *f)
{
    const struct linst *i = &k->inst[v];
    if (i->op != L_CONST)
        fprintf(f, "%%%u", v);
    else if (i->dtype == KL_I64)
        fprintf(f, "%" PRId64, (int64_t)i->imm);
    else
        fprintf(f, "%.17g:%s", dtype_value(i->dtype, i->imm), dtype_name(i->dtype));
}

static void operands(const struct kernel *k, const struct linst *i, FILE *f)
{
    const val v[3] = {i->a, i->b, i->c};
    for (int j = 0; j < 3 && v[j]; j++) {
        fputs(j ? ", " : " ", f);
        operand(k, v[j], f);
    }
}

static void predicate(const struct kernel *k, val p, FILE *f)
{
    if (!p)
        return;
    fputs(" if ", f);
    operand(k, p, f);
}

static void statement(const struct kernel *k, val v, FILE *f)
{
    const struct linst *i = &k->inst[v];
    switch (i->op) {
    case L_LOOP:
        fprintf(f, "%%%u = loop %s", v, loop_name[i->kind]);
        fputc(' ', f);
        operand(k, i->a, f);
        fputs(" to ", f);
        operand(k, i->b, f);
        if (i->imm != 1)
            fprintf(f, " step %" PRIu64, i->imm);
        fputs(" {", f);
        return;
    case L_IF:
        fputs("if", f);
        operands(k, i, f);
        fputs(" {", f);
        return;
    case L_NEXT:
        fputs("next", f);
        operands(k, i, f);
        return;
    case L_END:
        fputc('}', f);
        return;
    case L_STORE:
        fprintf(f, "store b%" PRIu64 "[", i->imm);
        operand(k, i->a, f);
        fputs("] = ", f);
        operand(k, i->b, f);
        predicate(k, i->c, f);
        return;
    case L_PREFETCH:
        fprintf(f, "prefetch %s b%" PRIu64 "[", i->kind == PREFETCH_WRITE ? "write" : "read", i->imm);
        operand(k, i->a, f);
        fputc(']', f);
        return;
    case L_LOAD:
        fprintf(f, "%%%u = load b%" PRIu64 "[", v, i->imm);
        operand(k, i->a, f);
        fputc(']', f);
        predicate(k, i->b, f);
        break;
    case L_SLOT:
        fprintf(f, "%%%u = slot %" PRIu64, v, i->imm);
        break;
    case L_FOLD:
        fprintf(f, "%%%u = fold %s", v, fold_name[i->imm]);
        operands(k, i, f);
        break;
    case L_MIX:
        fprintf(f, "%%%u = mix %s %" PRIu64, v, i->kind == MIX_LO ? "lo" : "hi", i->imm);
        operands(k, i, f);
        break;
    case L_CARRY:
    case L_OUT:
    case L_SPLAT:
        fprintf(f, "%%%u = %s", v, i->op == L_CARRY ? "carry" : i->op == L_OUT ? "out" : "splat");
        operands(k, i, f);
        break;
    default:
        fprintf(f, "%%%u = %s", v, prim_name[i->op - L_PRIM]);
        operands(k, i, f);
    }
    fprintf(f, " : %s%s", i->varying ? "*" : "", dtype_name(i->dtype));
}

bool kernel_print(const struct kernel *k, FILE *f)
{
    const struct schedule *s = &k->sched;
    fprintf(f, "kernel @%s {\n  schedule %s width %u", k->name, sched_name[s->kind], s->width);
    if (s->kind == SCHED_DOT)
        fprintf(f, " tile %ux%u kblock %u%s%s", s->mr, s->nr, s->kc, s->pack_a ? " pack_a" : "", s->pack_b ? " pack_b" : "");
    fprintf(f, " extent %" PRId64 " grain %" PRId64 "   # %" PRId64 " flops, %" PRId64 " bytes\n", k->extent, s->grain, k->flops, k->bytes);
    for (uint32_t b = 0; b < k->nbuf; b++)
        fprintf(f, "  b%u = %s %u : %s[%" PRId64 "]\n", b, role_name[k->buf[b].role], k->buf[b].id, dtype_name(k->buf[b].dtype), k->buf[b].count);
    int depth = 1;
    for (val v = 1; v < k->ninst; v++) {
        const struct linst *i = &k->inst[v];
        if (i->op == L_CONST)
            continue;
        depth -= i->op == L_END;
        fprintf(f, "%*s", 2 * depth, "");
        statement(k, v, f);
        fputc('\n', f);
        depth += i->op == L_LOOP || i->op == L_IF;
    }
    fputs("}\n", f);
    return !ferror(f);
}
