/* Every scheduling decision of one kernel: a tagged union, a member for each family of kernels (families.def).
 *
 * A family's choosing function fills the record from the group and the target; its emitting function makes the kernel
 * from the group and the record.  So a record that is given describes the very kernel.  On a processor no record
 * changes a bit.  On a GPU, records of gpu_row_reduce, column_reduce with parts, gpu_scan, gpu_dot_skinny, dot_blocks,
 * dot_matrix, rows, attention_matrix and attention_blocks decide the order in which floating point numbers are added
 * (ir/graph/node.h, "On GPUs"), so another record may round them otherwise.  Where a target asks for the graph's order,
 * all its records are `graph_order`: then none changes a bit, and those that would are refused. */
#ifndef KILN_SCHEDULE_H
#define KILN_SCHEDULE_H
#include "ir/loop/loop.h"

enum sched_kind {
#define FAMILY(KIND, word, group, fits, legal, propose) SCHED_##KIND,
#include "families.def"
    SCHED_COUNT };

static inline bool sched_is_scatter(unsigned kind) { return kind == SCHED_SCATTER || kind == SCHED_GPU_SCATTER; }

/* When the epilogue of a tile's products is computed: on the accumulators; or from a copy of them, after the tile,
 * after all tiles of its rows, or during the products of the tile to the right. */
enum sched_epilogue { EPILOGUE_NONE, EPILOGUE_IN_TILE, EPILOGUE_AFTER_TILE, EPILOGUE_AFTER_ROWS, EPILOGUE_DURING_NEXT,
                      EPILOGUE_COUNT };
/* How the second operand is copied into a panel: rows that are contiguous in memory; squares that registers transpose;
 * element by element; the same of rows or squares where columns, or steps of the contraction, are adjacent only
 * within runs. */
enum sched_pack { PACK_NONE, PACK_ROWS, PACK_SQUARES, PACK_ELEMENTS, PACK_COLUMN_RUNS, PACK_STEP_RUNS, PACK_COUNT };

/* The members of the families' records, in the order of their fields. */
#define FIELDS(word) struct {
#define END(word) } word;
#define NUMBER(family, type, word, low, high) type word;
#define FLAG(family, type, word) type word;
#define POWER(family, type, word, high) type word;
#define CHOSEN(family, type, word, high) type word;
#define LANES(family, type, word, high) type word;
#define NAMED(family, type, word, high, names) type word;
#define SET(family, type, word) type word;
#define SIDES(family, type, word, a, b, high) type a, b;
#define UNIT(family) uint16_t unit_m, unit_n, unit_k;
#define TILE(family) uint16_t mr, nr; uint32_t kc;
#define MEMBER(family, type, name) type name;
struct schedule {
    union {
        struct sched_record record;     /* as kernels have it; the first four members are described there */
        struct {
            uint16_t kind;              /* enum sched_kind */
            uint16_t width;             /* [chosen] */
            uint8_t stream;
            uint8_t graph_order;        /* what the target asks for, no choice */
            uint8_t pad[2];
            int64_t grain;
            union {
                uint64_t own[4];        /* first, so that records are zeroed whole */
#include "families.def"
            };
        };
    };
};
_Static_assert(sizeof(struct schedule) == sizeof(struct sched_record), "a family's members have room in the record");

extern const struct sched_family sched_families[SCHED_COUNT];
extern const struct sched_families lower_families;      /* the same, for kernel_parse */

static inline const struct schedule *schedule_of(const struct kernel *k) { return (const struct schedule *)&k->sched; }
static inline void schedule_set(struct kernel *k, const struct sched_record *s)
{
    k->sched = *s;
    k->family = &sched_families[s->kind];
}

/* ---- schedule_text.c: what a user or a tuner supplies: the records of some kernels of some graphs, each with the
 * place of its text ---- */
enum { COLUMN_NAME, COLUMN_KIND, COLUMN_FIELDS, COLUMN_COUNT = COLUMN_FIELDS + MAX_SCHED_FIELDS };
struct sched_line {
    char kernel[64];
    struct schedule sched;
    uint32_t line, column[COLUMN_COUNT];    /* from 1; column 0: the field is not in the text */
};
struct sched_section {      /* those of the kernels of one graph */
    char graph[64];         /* "": of every graph that has no section of its own */
    bool unfused;           /* for its unfused kernels, not its fused ones */
    char file[256];         /* for messages; may be "" */
    struct sched_line *v; uint32_t n, cap;
};
struct sched_sections { struct sched_section *v; uint32_t n, cap; };
/* Adds the sections of a text, of the form of stage "schedules" of a dump.  false: "file:line:column: reason". */
bool schedules_parse(const char *text, size_t len, const char *file, struct sched_sections *out, struct err *e);
void schedules_free(struct sched_sections *s);
/* The section of graph `graph` with the schedules of these kernels.
 * mem_free it; NULL: no memory */
char *schedules_text(const char *graph, bool unfused, struct kernel *const *k, uint32_t n);
char *schedule_line(const struct schedule *s);      /* "schedule map width 32 ..."; mem_free it; NULL: no memory */
/* false: "file:line:column: reason", at the field, or where the line begins if the text does not have it.
 * column: an index of sched_line.column */
bool schedule_refuse(const struct sched_section *s, const struct sched_line *l, uint32_t column, struct err *e,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
