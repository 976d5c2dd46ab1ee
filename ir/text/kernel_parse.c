/* Kernel text as kernels (grammar: README.md): the inverse of kernel_text.c.
 *
 * It reads one line at a time and checks only its syntax.  The verifier checks all other rules; its errors get the
 * position of the line.  Memory is proportional to the text, whatever numbers it contains, and each byte is read a
 * bounded number of times. */
#include "kernel_text.h"
#include <string.h>

struct spot { const char *at, *line_start; uint32_t line; };

struct kernel_reader {
    struct lexer l;
    struct kernel *k;
    const struct sched_families *families;   /* of schedules; NULL: none is known */
    struct names names;                      /* %name -> value */
    struct spot *spot; uint32_t spot_cap;    /* per value: position of its line */
    struct spot here;                        /* the current line */
    val open[MAX_NEST]; unsigned depth;
};

/* ---- pieces of a line ---- */

static bool kernel_parse_append(struct kernel_reader *r, struct linst i, val *out)
{
    if (!mem_reserve(&r->spot, &r->spot_cap, r->k->ninst + 1, sizeof *r->spot))
        return lex_no_memory(&r->l);
    r->spot[r->k->ninst] = r->here;
    val v = k_append(r->k, i);
    if (out)
        *out = v;
    return v || lex_no_memory(&r->l);
}

static bool dtype_word(struct kernel_reader *r, unsigned *dtype)
{
    lex_space(&r->l);
    const char *at = r->l.p;
    struct word w = lex_word(&r->l);
    int d = dtype_parse(w.s, w.len);
    if (d < 0) {
        r->l.p = at;
        return lex_expected(&r->l, "a dtype such as f32");
    }
    *dtype = (unsigned)d;
    return true;
}

/* 7 (an i64), 1.5:f32, bits(0x7fc00001):f32 */
static bool kernel_parse_literal(struct kernel_reader *r, val *out)
{
    const char *at = r->l.p, *why, *end = at;
    while (end < r->l.end && (is_name_char(*end) || strchr("+-()", *end)) && *end)
        end++;
    if (end == at)
        return lex_expected(&r->l, "a value such as %x or a number");
    r->l.p = end;
    unsigned dtype = KL_I64;
    uint64_t bits;
    if (end < r->l.end && *end == ':') {
        r->l.p++;
        if (!dtype_word(r, &dtype))
            return false;
    }
    if (!literal_parse(dtype, at, (size_t)(end - at), &bits, &why))
        return lex_fail(&r->l, at, "%s", why);
    return kernel_parse_append(r, (struct linst){.op = L_CONST, .dtype = (uint8_t)dtype, .imm = bits}, out);
}

static bool kernel_parse_operand(struct kernel_reader *r, val *out)
{
    struct word name;
    uint32_t *slot;
    lex_space(&r->l);
    const char *at = r->l.p;
    if (!lex_at(&r->l, '%'))
        return kernel_parse_literal(r, out);
    if (!lex_value_name(&r->l, &r->names, &name, &slot))
        return false;
    if (!*slot)
        return lex_fail(&r->l, at, "%%%.*s is not defined above", name.len > 64 ? 64 : (int)name.len, name.s);
    *out = *slot;
    return true;
}

static bool kernel_parse_operands(struct kernel_reader *r, struct linst *i, unsigned max)
{
    val *to[3] = {&i->a, &i->b, &i->c};
    for (unsigned n = 0; n < max && (!n || lex_take(&r->l, ',')); n++)
        if (!kernel_parse_operand(r, to[n]))
            return false;
    return true;
}

static bool parse_clause(struct kernel_reader *r, const char *word, val *out)
{
    return lex_need_word(&r->l, word) && kernel_parse_operand(r, out);
}

static bool next_is(struct kernel_reader *r, const char *word)
{
    lex_space(&r->l);
    const char *at = r->l.p;
    bool is = word_is(lex_word(&r->l), word);
    r->l.p = at;
    return is;
}

static bool parse_optional_clause(struct kernel_reader *r, const char *word, val *out)
{
    return !next_is(r, word) || parse_clause(r, word, out);
}

/* slot 3 max 512 */
static bool parse_slot(struct kernel_reader *r, struct linst *i)
{
    uint64_t max = 0;
    bool ok = lex_number(&r->l, UINT32_MAX, "a slot's number", &i->imm);
    if (ok && next_is(r, "max")) {
        lex_word(&r->l);
        ok = lex_number(&r->l, UINT32_MAX, "a slot's greatest value", &max);
    }
    i->imm |= max << 32;
    return ok;
}

/* b3 */
static bool parse_buffer(struct kernel_reader *r, uint64_t *out)
{
    lex_space(&r->l);
    const char *at = r->l.p;
    if (!lex_take(&r->l, 'b'))
        return lex_expected(&r->l, "a buffer such as b0");
    if (!lex_number(&r->l, UINT32_MAX, "a buffer's number", out))
        return false;
    return *out < r->k->nbuf || lex_fail(&r->l, at, "there is no buffer b%llu", (unsigned long long)*out);
}

static bool kernel_parse_element(struct kernel_reader *r, uint64_t *buf, val *index)
{
    return parse_buffer(r, buf) && lex_need(&r->l, '[', "'[' and an index") && kernel_parse_operand(r, index);
}

/* b3[%i], b3[%i by %stride], b3[%i across %stride] */
static bool kernel_parse_place(struct kernel_reader *r, struct linst *i)
{
    if (!kernel_parse_element(r, &i->imm, &i->a))
        return false;
    if (next_is(r, "by") || next_is(r, "across")) {
        i->kind = next_is(r, "by") ? TILE_ROWS : TILE_COLS;
        lex_word(&r->l);
        if (!kernel_parse_operand(r, &i->d))
            return false;
    }
    return lex_need(&r->l, ']', "']'");
}

/* "[8x32]" of a tile's type: "8x32" is no word. */
static bool tile_shape(struct kernel_reader *r, struct linst *i)
{
    uint64_t rows, cols;
    if (!lex_take(&r->l, '['))
        return true;
    if (!lex_number(&r->l, UINT16_MAX, "the tile's rows", &rows))
        return false;
    if (r->l.p == r->l.end || *r->l.p != 'x')
        return lex_expected(&r->l, "'x' and the tile's columns");
    r->l.p++;
    const char *at = r->l.p;
    if (!lex_number(&r->l, UINT16_MAX, "the tile's columns", &cols))
        return false;
    if (!rows || !cols)
        return lex_fail(&r->l, at, "a tile has rows and columns");
    i->rows = (uint16_t)rows;
    i->cols = (uint16_t)cols;
    return lex_need(&r->l, ']', "']'");
}

static bool parse_inst_type(struct kernel_reader *r, struct linst *i)
{
    unsigned dtype;
    if (!lex_need(&r->l, ':', "':' and the value's type"))
        return false;
    i->varying = lex_take(&r->l, '*');
    if (!dtype_word(r, &dtype))
        return false;
    i->dtype = (uint8_t)dtype;
    return tile_shape(r, i);
}

static bool parse_choice(struct kernel_reader *r, const struct words *words, const char *what, uint8_t *out)
{
    lex_space(&r->l);
    const char *at = r->l.p;
    int n = words_find(words, lex_word(&r->l));
    if (n < 0) {
        r->l.p = at;
        return lex_expected(&r->l, what);
    }
    *out = (uint8_t)n;
    return true;
}

static bool open_scope(struct kernel_reader *r, struct linst i, val *out)
{
    if (!lex_need(&r->l, '{', "'{'"))
        return false;
    if (r->depth == MAX_NEST)
        return lex_fail(&r->l, r->here.at, "more than %d loops and ifs, one in the other", MAX_NEST);
    return kernel_parse_append(r, i, out) && (r->open[r->depth++] = *out);
}

/* ---- lines ---- */

static bool parse_loop(struct kernel_reader *r, struct linst i, val *out)
{
    i.dtype = KL_I64;
    i.imm = 1;
    if (!parse_choice(r, &loop_words, "a kind of loop such as serial", &i.kind) || !kernel_parse_operand(r, &i.a) ||
        !parse_clause(r, "to", &i.b))
        return false;
    if (next_is(r, "step") && (!lex_need_word(&r->l, "step") || !lex_number(&r->l, INT64_MAX, "a step", &i.imm)))
        return false;
    uint64_t subgroup = 0;
    if (next_is(r, "subgroups") && (!lex_need_word(&r->l, "subgroups") ||
                                !lex_number(&r->l, MAX_SUBGROUP, "threads of a subgroup", &subgroup)))
        return false;
    i.rows = (uint16_t)subgroup;
    if ((i.kind == LOOP_PARALLEL || i.kind == LOOP_GRID) && !subgroup && next_is(r, "in_order")) {
        if (!lex_need_word(&r->l, "in_order"))
            return false;
        i.rows = 1;
    }
    i.varying = inst_is_varying(r->k, &i);
    return open_scope(r, i, out);
}

/* An instruction with a value, after "%name =". */
static bool value_line(struct kernel_reader *r, val *out)
{
    static const struct { const char *word; uint8_t op; } plain[] = {
        {"carry", L_CARRY}, {"out", L_OUT}, {"splat", L_SPLAT}};
    struct linst i = {0};
    uint8_t fold = 0;
    bool ok;
    lex_space(&r->l);
    const char *at = r->l.p;
    struct word w = lex_word(&r->l);
    for (unsigned n = 0; n < sizeof plain / sizeof *plain; n++)
        if (word_is(w, plain[n].word))
            i.op = plain[n].op;
    int prim = words_find(&prim_words, w);
    if (word_is(w, "loop")) {
        i.op = L_LOOP;
        return parse_loop(r, i, out);
    } else if (i.op) {
        ok = kernel_parse_operand(r, &i.a);
    } else if (word_is(w, "load")) {
        i.op = L_LOAD;
        ok = kernel_parse_place(r, &i) && parse_optional_clause(r, "if", &i.b);
    } else if (word_is(w, "receive")) {
        i.op = L_RECEIVE;
        ok = kernel_parse_element(r, &i.imm, &i.a) && lex_need(&r->l, ']', "']'") &&
             parse_optional_clause(r, "if", &i.b);
    } else if (word_is(w, "alias")) {
        uint64_t other = 0;
        i.op = L_ALIAS;
        ok = parse_buffer(r, &i.imm) && lex_need(&r->l, ',', "','") && parse_buffer(r, &other);
        i.imm |= other << 32;
    } else if (word_is(w, "slot")) {
        i.op = L_SLOT;
        ok = parse_slot(r, &i);
    } else if (word_is(w, "lane_reduce")) {
        i.op = L_LANE_REDUCE;
        ok = parse_choice(r, &fold_words, "a fold such as add", &fold) && kernel_parse_operand(r, &i.a);
        i.imm = fold;
    } else if (word_is(w, "interleave")) {
        i.op = L_INTERLEAVE;
        ok = parse_choice(r, &interleave_words, "lo or hi", &i.kind) && lex_number(&r->l, UINT32_MAX, "a distance",
                                                                                   &i.imm) &&
             kernel_parse_operand(r, &i.a) && lex_need(&r->l, ',', "','") && kernel_parse_operand(r, &i.b);
    } else if (word_is(w, "index")) {
        i.op = L_INDEX;
        ok = parse_choice(r, &tile_words, "rows or columns", &i.kind);
    } else if (word_is(w, "mma")) {
        i.op = L_MMA;
        ok = parse_choice(r, &mma_words, "chain, any, async or even_odd", &i.kind) && kernel_parse_operands(r, &i, 3);
    } else if (word_is(w, "columns")) {
        i.op = L_COLUMNS;
        ok = lex_number(&r->l, MAX_TILE_SIDE, "the first column", &i.imm) && kernel_parse_operand(r, &i.a);
    } else if (prim >= 0) {
        i.op = (uint8_t)(L_PRIM + prim);
        ok = kernel_parse_operands(r, &i, 3);
    } else {
        r->l.p = at;
        return lex_expected(&r->l, "an instruction such as load or add");
    }
    return ok && parse_inst_type(r, &i) && kernel_parse_append(r, i, out);
}

static bool parse_definition(struct kernel_reader *r)
{
    struct word name;
    uint32_t *slot;
    val v;
    const char *at = r->l.p;
    if (!lex_value_name(&r->l, &r->names, &name, &slot))
        return false;
    if (*slot)
        return lex_fail(&r->l, at, "%%%.*s is defined twice", name.len > 64 ? 64 : (int)name.len, name.s);
    if (!lex_need(&r->l, '=', "'='") || !value_line(r, &v))
        return false;
    slot = names_at(&r->names, name.s, name.len); /* the table may have grown since */
    if (!slot)
        return lex_no_memory(&r->l);
    *slot = v;
    return true;
}

static bool view_numbers(struct kernel_reader *r, const char *word, int64_t *out, unsigned n)
{
    uint64_t x;
    if (!lex_need_word(&r->l, word))
        return false;
    for (unsigned d = 0; d < n; d++) {
        if (!lex_number(&r->l, INT64_MAX, "a number for each dimension", &x))
            return false;
        out[d] = (int64_t)x;
    }
    return true;
}

/* first 0 size 64 128 1 step 1 64 8192 */
static bool view_line(struct kernel_reader *r, struct lbuf *view)
{
    return view_numbers(r, "first", &view->first, 1) && view_numbers(r, "size", view->size, VIEW_DIMS) &&
           view_numbers(r, "step", view->step, VIEW_DIMS);
}

static bool buffer_line(struct kernel_reader *r)
{
    struct lbuf view = {0};
    unsigned dtype;
    uint8_t role = 0;
    uint64_t number, id = 0, rows = 0, count;
    const char *at = r->l.p++;
    if (!lex_number(&r->l, UINT32_MAX, "a buffer's number", &number))
        return false;
    if (number != r->k->nbuf)
        return lex_fail(&r->l, at, "buffer b%llu where b%u is next", (unsigned long long)number, r->k->nbuf);
    if (!lex_need(&r->l, '=', "'='") || !parse_choice(r, &role_words, "a kind of buffer such as in", &role))
        return false;
    if (next_is(r, "panels")) {
        lex_word(&r->l);
        if (!lex_number(&r->l, UINT16_MAX, "the rows of a matrix", &rows) ||
            !lex_need(&r->l, 'x', "'x' and its columns") || !lex_number(&r->l, UINT16_MAX, "its columns", &id))
            return false;
        if (!rows || !id)
            return lex_fail(&r->l, at, "panels of %llux%llu", (unsigned long long)rows, (unsigned long long)id);
    } else if (next_is(r, "over")) {
        lex_word(&r->l);
        if (!lex_number(&r->l, UINT16_MAX, "a buffer's number", &id))
            return false;
        id++;
    } else if (!lex_at(&r->l, ':') && !lex_number(&r->l, UINT32_MAX, "an argument's number", &id)) {
        return false;
    }
    if (role == BUF_VIEW && !view_line(r, &view))
        return false;
    if (!lex_need(&r->l, ':', "':' and the buffer's type") || !dtype_word(r, &dtype) ||
        !lex_need(&r->l, '[', "'[' and the number of elements") ||
        !lex_number(&r->l, (uint64_t)INT64_MAX / dtype_size(dtype), "the number of elements", &count) ||
        !lex_need(&r->l, ']', "']'"))
        return false;
    k_buf(r->k, (enum buf_role)role, dtype, (int64_t)count, (uint32_t)id);
    if (!r->k->err.code) {
        struct lbuf *l = &r->k->buf[r->k->nbuf - 1];
        l->panel_rows = (uint16_t)rows;
        l->first = view.first;
        memcpy(l->size, view.size, sizeof l->size);
        memcpy(l->step, view.step, sizeof l->step);
    }
    return !r->k->err.code || lex_no_memory(&r->l);
}

static bool parse_estimate(struct kernel_reader *r)
{
    uint64_t flops, bytes;
    if (!lex_number(&r->l, INT64_MAX, "a number of flops", &flops) || !lex_need_word(&r->l, "flops") ||
        !lex_number(&r->l, INT64_MAX, "a number of bytes", &bytes) || !lex_need_word(&r->l, "bytes"))
        return false;
    r->k->flops = (int64_t)flops;
    r->k->bytes = (int64_t)bytes;
    return true;
}

static bool parse_members(struct kernel_reader *r)
{
    uint64_t members;
    if (!lex_number(&r->l, MAX_MEMBERS, "a number of members", &members))
        return false;
    r->k->members = (uint32_t)members;
    return true;
}

static bool parse_grain(struct kernel_reader *r)
{
    uint64_t grain;
    if (!lex_number(&r->l, INT64_MAX, "a number of iterations", &grain))
        return false;
    r->k->sched.grain = (int64_t)grain;
    return true;
}

static bool close_scope(struct kernel_reader *r)
{
    struct linst i = {.op = L_END, .dtype = KL_BOOL, .a = r->open[--r->depth]};
    r->l.p++;
    i.varying = inst_is_varying(r->k, &i);
    return kernel_parse_append(r, i, NULL);
}

/* copy 4 b2[%to] = b0[%from] if %p */
static bool kernel_parse_copy(struct kernel_reader *r, struct linst *i)
{
    uint64_t count, to, from;
    if (!lex_number(&r->l, UINT16_MAX, "the number of elements", &count) || !kernel_parse_element(r, &to, &i->a) ||
        !lex_need(&r->l, ']', "']'") || !lex_need(&r->l, '=', "'='") || !kernel_parse_element(r, &from, &i->b) ||
        !lex_need(&r->l, ']', "']'") || !parse_optional_clause(r, "if", &i->c))
        return false;
    i->rows = (uint16_t)count;
    i->imm = to | from << 32;
    return true;
}

/* copy panel b2[%to] = b5[%x, %y, %z], after "panel" */
static bool kernel_parse_panel(struct kernel_reader *r, struct linst *i)
{
    uint64_t to, from;
    if (!kernel_parse_element(r, &to, &i->a) || !lex_need(&r->l, ']', "']'") || !lex_need(&r->l, '=', "'='") ||
        !kernel_parse_element(r, &from, &i->b) || !lex_need(&r->l, ',', "','") || !kernel_parse_operand(r, &i->c) ||
        !lex_need(&r->l, ',', "','") || !kernel_parse_operand(r, &i->d) || !lex_need(&r->l, ']', "']'"))
        return false;
    i->imm = to | from << 32;
    return true;
}

/* arrive b6[%i], arrive b6[%i] panels 2, await b6[%i] phases %n */
static bool kernel_parse_phase(struct kernel_reader *r, struct linst *i)
{
    uint64_t panels = 0;
    if (!kernel_parse_element(r, &i->imm, &i->a) || !lex_need(&r->l, ']', "']'"))
        return false;
    if (i->op == L_AWAIT)
        return parse_clause(r, "phases", &i->b);
    if (next_is(r, "panels") && (!lex_need_word(&r->l, "panels") ||
                                 !lex_number(&r->l, UINT16_MAX, "the number of panels", &panels)))
        return false;
    i->imm |= panels << 32;
    return true;
}

/* enum async: of products where the word follows, else of copies */
static uint8_t of_products(struct kernel_reader *r)
{
    if (!next_is(r, async_words.v[ASYNC_PRODUCTS]))
        return ASYNC_COPIES;
    lex_word(&r->l);
    return ASYNC_PRODUCTS;
}

static bool at_number(struct kernel_reader *r)
{
    lex_space(&r->l);
    return r->l.p < r->l.end && *r->l.p >= '0' && *r->l.p <= '9';
}

static bool parse_schedule(struct kernel_reader *r)
{
    bool ok = record_read(&r->l, r->families, &r->k->sched, NULL);
    r->k->family = ok ? &r->families->v[r->k->sched.kind] : NULL;
    return ok;
}

/* "= value ["if" predicate]" of what stores. */
static bool parse_assigned(struct kernel_reader *r, struct linst *i)
{
    bool ok = lex_need(&r->l, '=', "'='") && kernel_parse_operand(r, &i->b) && parse_optional_clause(r, "if", &i->c);
    i->dtype = r->k->inst[i->b].dtype;
    return ok;
}

/* An instruction without a value, or a line of the kernel's head. */
static bool effect_line(struct kernel_reader *r)
{
    static const struct { const char *word; uint8_t op; } bare[] = {
        {"barrier", L_BARRIER}, {"sync", L_SYNC}, {"arrive", L_ARRIVE}, {"await", L_AWAIT}};
    struct linst i = {.dtype = KL_BOOL};
    val head;
    const char *at = r->l.p;
    struct word w = lex_word(&r->l);
    bool ok;
    for (unsigned n = 0; n < sizeof bare / sizeof *bare; n++)
        if (word_is(w, bare[n].word))
            i.op = bare[n].op;
    if (i.op == L_ARRIVE || i.op == L_AWAIT) {
        ok = kernel_parse_phase(r, &i);
    } else if (i.op) {
        ok = i.op == L_SYNC || !at_number(r) || lex_number(&r->l, MAX_THREADS, "the threads of a role", &i.imm);
    } else if (word_is(w, "atomic")) {
        i.op = L_ATOMIC;
        ok = parse_choice(r, &fold_words, "add, max or min", &i.kind) && kernel_parse_element(r, &i.imm, &i.a) &&
             lex_need(&r->l, ']', "']'") && parse_assigned(r, &i);
    } else if (word_is(w, "publish")) {
        i.op = L_PUBLISH;
        ok = kernel_parse_element(r, &i.imm, &i.a) && lex_need(&r->l, ']', "']'") && parse_assigned(r, &i);
    } else if (word_is(w, "copy")) {
        i.op = next_is(r, "panel") ? L_COPY_PANEL : L_COPY;
        ok = i.op == L_COPY ? kernel_parse_copy(r, &i) : lex_need_word(&r->l, "panel") && kernel_parse_panel(r, &i);
    } else if (word_is(w, "wait")) {
        i.op = L_WAIT;
        i.kind = of_products(r);
        ok = lex_number(&r->l, UINT16_MAX, "a number of batches", &i.imm);
    } else if (word_is(w, "commit")) {
        i.op = L_COMMIT;
        i.kind = of_products(r);
        ok = true;
    } else if (word_is(w, "store")) {
        i.op = L_STORE;
        ok = kernel_parse_place(r, &i) && parse_assigned(r, &i);
    } else if (word_is(w, "next")) {
        i.op = L_NEXT;
        ok = kernel_parse_operand(r, &i.a) && lex_need(&r->l, ',', "','") && kernel_parse_operand(r, &i.b);
        i.dtype = r->k->inst[i.b].dtype;
    } else if (word_is(w, "prefetch")) {
        i.op = L_PREFETCH;
        ok = parse_choice(r, &prefetch_words, "read or write", &i.kind) && kernel_parse_element(r, &i.imm, &i.a) &&
            lex_need(&r->l, ']', "']'");
    } else if (word_is(w, "if")) {
        i.op = L_IF;
        ok = kernel_parse_operand(r, &i.a);
        if (ok && next_is(r, "registers"))
            ok = lex_need_word(&r->l, "registers") && lex_number(&r->l, UINT16_MAX, "registers of a thread", &i.imm);
        i.varying = r->k->inst[i.a].varying;
        return ok && open_scope(r, i, &head);
    } else if (r->k->ninst == 1 && r->families && word_is(w, "schedule")) {
        return parse_schedule(r);
    } else if (r->k->ninst == 1 && word_is(w, "estimate")) {
        return parse_estimate(r);
    } else if (r->k->ninst == 1 && word_is(w, "members")) {
        return parse_members(r);
    } else if (r->k->ninst == 1 && word_is(w, "grain")) {
        return parse_grain(r);
    } else {
        r->l.p = at;
        return lex_expected(&r->l, "an instruction such as store or '}'");
    }
    i.varying = inst_is_varying(r->k, &i);
    return ok && kernel_parse_append(r, i, NULL);
}

static bool parse_kernel_line(struct kernel_reader *r)
{
    bool ok;
    r->here = (struct spot){r->l.p, r->l.line_start, r->l.line};
    if (lex_at(&r->l, '%'))
        ok = parse_definition(r);
    else if (lex_at(&r->l, '}'))
        ok = close_scope(r);
    else if (r->k->ninst == 1 && lex_at(&r->l, 'b') && r->l.p + 1 < r->l.end && r->l.p[1] >= '0' && r->l.p[1] <= '9')
        ok = buffer_line(r);
    else
        ok = effect_line(r);
    return ok && lex_end_line(&r->l);
}

static bool parse_kernel_header(struct kernel_reader *r)
{
    return lex_title(&r->l, "kernel", r->k->name, sizeof r->k->name) && lex_need(&r->l, '{', "'{'") &&
           lex_end_line(&r->l);
}

/* Puts the kernel into its normal form and verifies it; errors get the position of the value's line. */
static bool kernel_parse_canonicalize(struct kernel_reader *r, const char *end)
{
    struct err broken = {0};
    val *from = mem_alloc(r->k->ninst * sizeof *from);
    bool ok = from && kernel_canonicalize(r->k, from);
    r->k->extent = ok ? kernel_extent(r->k) : 1;
    if (!ok) {
        lex_no_memory(&r->l);
    } else if (!(ok = kernel_check(r->k, &broken))) {
        val at = broken.inst ? from[broken.inst] : 0;
        struct spot s = at ? r->spot[at] : (struct spot){end, r->l.line_start, r->l.line};
        r->l.line = s.line;
        r->l.line_start = s.line_start;
        broken.code == KL_ERR_MEMORY ? lex_no_memory(&r->l) : lex_fail(&r->l, s.at, "%s", broken.msg);
    }
    mem_free(from);
    return ok;
}

static bool parse_whole_kernel(struct kernel_reader *r)
{
    if (!parse_kernel_header(r))
        return false;
    for (lex_lines(&r->l); r->depth || !lex_at(&r->l, '}'); lex_lines(&r->l)) {
        if (r->l.p == r->l.end)
            return lex_expected(&r->l, "'}'");
        if (!parse_kernel_line(r))
            return false;
    }
    const char *end = r->l.p++;
    struct lexer brace = r->l;
    if (!lex_end_line(&r->l))
        return false;
    struct lexer rest = r->l;
    r->l = brace;
    bool ok = kernel_parse_canonicalize(r, end);
    r->l = rest;
    return ok;
}

/* Reads one kernel from *l. */
static struct kernel *read_kernel(struct lexer *l, const struct sched_families *f)
{
    struct kernel_reader r = {.l = *l, .k = kernel_new("kernel"), .families = f};
    bool ok = r.k ? parse_whole_kernel(&r) : lex_no_memory(&r.l);
    *l = r.l;
    names_free(&r.names);
    mem_free(r.spot);
    if (!ok) {
        kernel_free(r.k);
        return NULL;
    }
    return r.k;
}

bool kernel_parse(const char *text, size_t len, const char *file, const struct sched_families *f, struct kernels *out,
                  struct err *e)
{
    struct lexer l = {.p = text, .end = text + len, .line_start = text, .line = 1, .file = file, .e = e};
    lex_lines(&l);
    do {
        struct kernel *k = read_kernel(&l, f);
        if (!k)
            return false;
        if (!mem_reserve(&out->v, &out->cap, out->n + 1, sizeof *out->v)) {
            kernel_free(k);
            return lex_no_memory(&l);
        }
        out->v[out->n++] = k;
        lex_lines(&l);
    } while (l.p < l.end);
    return true;
}

void kernels_free(struct kernels *k)
{
    for (uint32_t i = 0; i < k->n; i++)
        kernel_free(k->v[i]);
    mem_free(k->v);
    *k = (struct kernels){0};
}
