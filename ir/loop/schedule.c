/* The table of schedules' fields: their words, numbers and limits.  Text and checks are loops over it. */
#include "schedule.h"
#include "loop.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct schedule, member), .size = sizeof((struct schedule *)0)->member
/* A number from `low` to `high`; one that may be left open; lanes of a vector loop, likewise. */
#define NUMBER(name, member, low, high) {.word = name, .form = FORM_NUMBER, AT(member), .min = low, .max = high}
#define CHOSEN(name, member, high) \
    {.word = name, .form = FORM_NUMBER, AT(member), .chosen = true, .min = 1, .max = high}
#define LANES(name, member, high) \
    {.word = name, .form = FORM_NUMBER, AT(member), .chosen = true, .power = true, .min = 1, .max = high}
#define SIDES(name, member, count, high) \
    {.word = name, .form = FORM_SIDES, AT(member), .sides = count, .min = 1, .max = high}
#define FLAG(name, member) {.word = name, .form = FORM_FLAG, AT(member), .max = 1}
#define WIDTH LANES("width", width, 64)
#define GPU_WIDTH LANES("width", width, MAX_GPU_VECTOR)
#define VECTOR_WIDTH(family) \
    {.word = "vector", .form = FORM_NUMBER, AT(family.vector), .power = true, .max = 8}
#define THREADS CHOSEN("width", width, MAX_THREADS)
#define TILE(family) SIDES("tile", family.mr, 2, MAX_TILE_SIDE)
#define KBLOCK(family) NUMBER("kblock", family.kc, 0, UINT32_MAX)
#define STREAM FLAG("stream", stream)
#define GRAIN NUMBER("grain", grain, 0, INT64_MAX)

static const char *const epilogue_names[EPILOGUE_COUNT] = {
    [EPILOGUE_IN_TILE] = "in_tile", [EPILOGUE_AFTER_TILE] = "after_tile", [EPILOGUE_AFTER_ROWS] = "after_rows",
    [EPILOGUE_DURING_NEXT] = "during_next"};
static const char *const pack_names[PACK_COUNT] = {
    [PACK_ROWS] = "rows", [PACK_SQUARES] = "squares", [PACK_ELEMENTS] = "elements",
    [PACK_COLUMN_RUNS] = "column_runs", [PACK_STEP_RUNS] = "step_runs"};

static const struct sched_field map_fields[] = {
    WIDTH, CHOSEN("vectors", map.vectors, UINT16_MAX),
    VECTOR_WIDTH(map),
    FLAG("join_short", map.join_short), NUMBER("tasks", map.tasks, 0, 1 << 24), STREAM, GRAIN};
static const struct sched_field row_reduce_fields[] = {
    WIDTH, {.word = "lanes", .form = FORM_NUMBER, AT(row_reduce.lanes), .power = true, .max = 64},
    NUMBER("vectors", row_reduce.vectors, 0, 1024), NUMBER("axes", row_reduce.axes, 0, KL_MAX_RANK),
    NUMBER("ahead", row_reduce.ahead, 0, UINT16_MAX), GRAIN};
static const struct sched_field column_reduce_fields[] = {
    WIDTH, NUMBER("axes", column_reduce.axes, 0, KL_MAX_RANK), FLAG("short_rows", column_reduce.short_rows),
    NUMBER("lines", column_reduce.lines, 0, 8), NUMBER("ahead", column_reduce.ahead, 0, UINT16_MAX),
    NUMBER("split", column_reduce.split, 0, UINT32_MAX), NUMBER("vectors", column_reduce.vectors, 0, 1024),
    VECTOR_WIDTH(column_reduce), GRAIN};
static const struct sched_field rows_fields[] = {
    GPU_WIDTH, {.word = "keep", .form = FORM_SET, AT(rows.keep), .max = 63}, NUMBER("held", rows.held, 0, 64),
    VECTOR_WIDTH(rows), STREAM, GRAIN};
static const struct sched_field gpu_row_reduce_fields[] = {
    GPU_WIDTH, VECTOR_WIDTH(gpu_row_reduce), NUMBER("split", gpu_row_reduce.split, 0, UINT32_MAX), GRAIN};
static const struct sched_field dot_fields[] = {
    WIDTH, TILE(dot), KBLOCK(dot), CHOSEN("rows", dot.rows, UINT32_MAX), NUMBER("run", dot.run, 0, UINT32_MAX),
    LANES("square", dot.square, 64), FLAG("pack_b", dot.pack_b),
    {.word = "pack_by", .form = FORM_WORD, AT(dot.pack_by), .chosen = true, .min = 1, .max = PACK_COUNT - 1,
     .name = pack_names},
    {.word = "epilogue", .form = FORM_WORD, AT(dot.epilogue), .chosen = true, .min = 1, .max = EPILOGUE_COUNT - 1,
     .name = epilogue_names},
    FLAG("prefetch_a", dot.prefetch_a), FLAG("prefetch_b", dot.prefetch_b), FLAG("prefetch_out", dot.prefetch_out),
    FLAG("wide", dot.wide), LANES("lanes", dot.lanes, 64), GRAIN};
static const struct sched_field gpu_turn_fields[] = {GPU_WIDTH, STREAM, GRAIN};
static const struct sched_field dot_skinny_fields[] = {
    WIDTH, TILE(dot_skinny), CHOSEN("step", dot_skinny.step, 256), KBLOCK(dot_skinny),
    CHOSEN("strip", dot_skinny.strip, UINT32_MAX), LANES("each", dot_skinny.each, 8),
    CHOSEN("ahead", dot_skinny.ahead, UINT16_MAX), FLAG("widen", dot_skinny.widen), GRAIN};
static const struct sched_field dot_bytes_fields[] = {
    WIDTH, TILE(dot_bytes), KBLOCK(dot_bytes), CHOSEN("rows", dot_bytes.rows, UINT32_MAX),
    CHOSEN("panel", dot_bytes.panel, UINT32_MAX), LANES("lanes", dot_bytes.lanes, 64), FLAG("pack_b", dot_bytes.pack_b),
    FLAG("prefetch_b", dot_bytes.prefetch_b), GRAIN};
static const struct sched_field dot_blocks_fields[] = {
    THREADS, TILE(dot_blocks), SIDES("block", dot_blocks.block_m, 2, UINT16_MAX),
    NUMBER("step", dot_blocks.step, 1, UINT16_MAX), KBLOCK(dot_blocks),
    NUMBER("split", dot_blocks.split, 0, UINT32_MAX), GRAIN};
static const struct sched_field gpu_dot_skinny_fields[] = {
    GPU_WIDTH, TILE(gpu_dot_skinny), KBLOCK(gpu_dot_skinny), CHOSEN("split", gpu_dot_skinny.split, UINT32_MAX), GRAIN};
static const struct sched_field dot_matrix_fields[] = {
    THREADS, TILE(dot_matrix), SIDES("block", dot_matrix.block_m, 2, UINT16_MAX),
    NUMBER("step", dot_matrix.step, 1, UINT16_MAX), KBLOCK(dot_matrix),
    {.word = "unit", .form = FORM_SIDES, AT(dot_matrix.unit_m), .sides = 3, .chosen = true, .min = 1,
     .max = MAX_TILE_SIDE},
    LANES("subgroup", dot_matrix.subgroup, MAX_SUBGROUP), CHOSEN("stages", dot_matrix.stages, 8),
    FLAG("copy_a", dot_matrix.copy_a), FLAG("copy_b", dot_matrix.copy_b), FLAG("async", dot_matrix.async),
    FLAG("panels", dot_matrix.panels), FLAG("reordered", dot_matrix.reordered),
    NUMBER("split", dot_matrix.split, 0, UINT32_MAX), GRAIN};
static const struct sched_field scatter_fields[] = {WIDTH, LANES("copy", scatter.copy, 64), GRAIN};
static const struct sched_field lanes_fields[] = {WIDTH, GRAIN};
static const struct sched_field threads_fields[] = {THREADS, GRAIN};
static const struct sched_field attention_fields[] = {
    WIDTH, CHOSEN("rows", attention.rows, 8),
    {.word = "square", .form = FORM_NUMBER, AT(attention.square), .power = true, .max = 8},
    FLAG("widen", attention.widen), GRAIN};
static const struct sched_field attention_both_fields[] = {
    WIDTH, CHOSEN("rows", attention.rows, 8), LANES("lanes", attention.lanes, 64),
    {.word = "square", .form = FORM_NUMBER, AT(attention.square), .power = true, .max = 8},
    FLAG("widen", attention.widen), GRAIN};
static const struct sched_field attention_one_fields[] = {
    WIDTH, CHOSEN("rows", attention_one.rows, 16), LANES("keys", attention_one.keys, 8),
    LANES("lanes", attention_one.lanes, 64), GRAIN};

static const struct sched_field attention_matrix_fields[] = {
    THREADS, CHOSEN("rows", attention_matrix.rows, 1024), LANES("step", attention_matrix.step, MAX_TILE_SIDE),
    {.word = "unit", .form = FORM_SIDES, AT(attention_matrix.unit_m), .sides = 3, .chosen = true, .min = 1,
     .max = MAX_TILE_SIDE},
    LANES("subgroup", attention_matrix.subgroup, MAX_SUBGROUP), CHOSEN("stages", attention_matrix.stages, 8),
    FLAG("async", attention_matrix.async), FLAG("panels", attention_matrix.panels), GRAIN};
static const struct sched_field attention_blocks_fields[] = {
    THREADS, CHOSEN("rows", attention_blocks.rows, 1024), GRAIN};

#define FAMILY(name, fields) {name, fields, sizeof fields / sizeof *fields}
const struct sched_family sched_families[SCHED_COUNT] = {
    [SCHED_MAP] = FAMILY("map", map_fields), [SCHED_ROW_REDUCE] = FAMILY("row_reduce", row_reduce_fields),
    [SCHED_COLUMN_REDUCE] = FAMILY("column_reduce", column_reduce_fields), [SCHED_ROWS] = FAMILY("rows", rows_fields),
    [SCHED_DOT] = FAMILY("dot", dot_fields), [SCHED_DOT_THIN] = FAMILY("dot_skinny", dot_skinny_fields),
    [SCHED_DOT_BYTES] = FAMILY("dot_bytes", dot_bytes_fields),
    [SCHED_DOT_BLOCKS] = FAMILY("dot_blocks", dot_blocks_fields),
    [SCHED_DOT_MATRIX] = FAMILY("dot_matrix", dot_matrix_fields), [SCHED_SCATTER] = FAMILY("scatter", scatter_fields),
    [SCHED_GPU_ROW_REDUCE] = FAMILY("gpu_row_reduce", gpu_row_reduce_fields),
    [SCHED_GPU_DOT_THIN] = FAMILY("gpu_dot_skinny", gpu_dot_skinny_fields),
    [SCHED_GPU_SCATTER] = FAMILY("gpu_scatter", threads_fields), [SCHED_GPU_SCAN] = FAMILY("gpu_scan", threads_fields),
    [SCHED_GPU_TRANSPOSE] = FAMILY("gpu_transpose", gpu_turn_fields),
    [SCHED_GPU_SORT] = FAMILY("gpu_sort", threads_fields), [SCHED_CUMULATIVE] = FAMILY("cumulative", lanes_fields),
    [SCHED_SORT] = FAMILY("sort", lanes_fields),
    [SCHED_ATTENTION] = FAMILY("attention", attention_fields),
    [SCHED_ATTENTION_ONE] = FAMILY("attention_one", attention_one_fields),
    [SCHED_ATTENTION_GRAD] = FAMILY("attention_grad", attention_fields),
    [SCHED_ATTENTION_BOTH] = FAMILY("attention_both", attention_both_fields),
    [SCHED_ATTENTION_MATRIX] = FAMILY("attention_matrix", attention_matrix_fields),
    [SCHED_ATTENTION_BLOCKS] = FAMILY("attention_blocks", attention_blocks_fields)};
_Static_assert(sizeof dot_fields / sizeof *dot_fields <= MAX_SCHED_FIELDS, "every family's fields have a column");

uint64_t sched_get(const struct schedule *s, const struct sched_field *f, unsigned side)
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

void sched_set(struct schedule *s, const struct sched_field *f, unsigned side, uint64_t v)
{
    char *at = (char *)s + f->offset + side * f->size;
    switch (f->size) {
    case 1: memcpy(at, &(uint8_t){(uint8_t)v}, 1); break;
    case 2: memcpy(at, &(uint16_t){(uint16_t)v}, 2); break;
    case 4: memcpy(at, &(uint32_t){(uint32_t)v}, 4); break;
    default: memcpy(at, &v, 8); break;
    }
}

uint32_t sched_field_find(unsigned kind, const char *word)
{
    const struct sched_family *family = &sched_families[kind];
    for (uint32_t i = 0; i < family->n; i++)
        if (!strcmp(family->field[i].word, word))
            return i;
    return MAX_SCHED_FIELDS;
}

bool sched_refuse(struct sched_refusal *r, const char *field, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    format_text_v(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
    r->field = field;
    return false;
}

static bool number_in_range(const struct sched_field *f, uint64_t v, struct sched_refusal *r)
{
    if (f->chosen && !v)
        return true;
    if (v >= (uint64_t)f->min && v <= (uint64_t)f->max && (!f->power || !(v & (v - 1))))
        return true;
    if (f->power)
        return sched_refuse(r, f->word, "%s %" PRIu64 ": it may be %s1, 2, 4 .. %" PRId64, f->word, v,
                            f->min ? "" : "0, ", f->max);
    return sched_refuse(r, f->word, "%s %" PRIu64 ": it may be %" PRId64 " to %" PRId64, f->word, v, f->min, f->max);
}

bool sched_in_range(const struct schedule *s, struct sched_refusal *r)
{
    const struct sched_family *family = &sched_families[s->kind];
    for (uint32_t i = 0; i < family->n; i++) {
        const struct sched_field *f = &family->field[i];
        for (unsigned side = 0; f->form != FORM_SET && side < (f->sides ? f->sides : 1u); side++)
            if (!number_in_range(f, sched_get(s, f, side), r))
                return false;
    }
    return true;
}
