/* Every scheduling decision of one kernel: a tagged union, a member for each family of kernels (passes/lower).
 *
 * A family's choosing function fills the record from the group and the target; its emitting function makes the kernel
 * from the group and the record, and asks of the target at most whether it is a GPU and what its shared memory holds.
 * So a record that is given describes the very kernel.  On a processor no record changes a bit.  On a GPU, records of
 * gpu_row_reduce, column_reduce with parts, gpu_scan, gpu_dot_skinny, dot_blocks, dot_matrix, rows, attention_matrix
 * and attention_blocks decide the order in which floating point numbers are added (graph/node.h, "On GPUs"), so
 * another record may round them otherwise.
 *
 * Records have a text (ir/text/schedule_text.c).  The table in schedule.c names each family's fields, in the order of
 * the text, and says what numbers they may have. */
#ifndef KILN_SCHEDULE_H
#define KILN_SCHEDULE_H
#include "ir/ir.h"

enum sched_kind {
    SCHED_MAP, SCHED_ROW_REDUCE, SCHED_GPU_ROW_REDUCE, SCHED_COLUMN_REDUCE, SCHED_ROWS,
    SCHED_DOT, SCHED_DOT_THIN, SCHED_DOT_BYTES, SCHED_DOT_BLOCKS, SCHED_DOT_MATRIX,
    SCHED_SCATTER, SCHED_CUMULATIVE, SCHED_SORT, SCHED_GPU_DOT_THIN, SCHED_GPU_SCATTER, SCHED_GPU_SCAN, SCHED_GPU_SORT,
    SCHED_GPU_TRANSPOSE,
    SCHED_ATTENTION, SCHED_ATTENTION_ONE, SCHED_ATTENTION_GRAD, SCHED_ATTENTION_BOTH, SCHED_ATTENTION_MATRIX,
    SCHED_ATTENTION_BLOCKS,
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

/* A field whose comment ends in "[chosen]" is chosen where a user-supplied record has 0 there. */
struct schedule {
    uint16_t kind;          /* enum sched_kind */
    uint16_t width;         /* lanes of the vector loops; of dot_blocks, gpu_*: threads; of dot_matrix: threads that
                               multiply  [chosen] */
    uint8_t stream;         /* map, rows: results are stored non-temporally, where vectors lie at whole registers */
    uint8_t pad[3];
    int64_t grain;          /* parallel iterations worth one task; 0: never split */
    union {
        uint64_t words[4];  /* first, so that records are zeroed whole */
        struct {
            uint16_t vectors;       /* of an iteration of the parallel loop, where that is one dimension  [chosen] */
            uint8_t vector;     /* elements of a lane; 0: one */
            uint8_t join_short;     /* dimensions are iterated as one where the innermost has few elements */
            uint32_t tasks;         /* iterations have fewer vectors if there would be fewer than so many of them, and
                                       are blocks in each row of several dimensions; 0: as many as `vectors`, rows */
        } map;
        struct {
            uint16_t lanes;         /* rows of the epilogue's vector loop; 0: the epilogue is computed row by row */
            uint16_t vectors;       /* such loops in an iteration */
            uint16_t axes;          /* the last kept axes, whose rows lanes may lie in */
            uint16_t ahead;         /* elements from the one at hand to the one that is prefetched; 0: none is */
        } row_reduce;
        struct {                    /* on a GPU: a row's threads, in any order of its sums */
            uint16_t vector;    /* elements of a thread in each access; 0: one */
            uint32_t split;         /* rows are summed in parts of so many elements, then those; 0: not */
        } gpu_row_reduce;
        struct {
            uint16_t axes;          /* the last kept axes, whose results lanes may lie in */
            uint16_t short_rows;    /* lanes are whole rows of a few elements */
            uint16_t lines;         /* of memory that are prefetched for each row of a vector of results */
            uint16_t ahead;         /* rows from the one at hand to the one that is prefetched */
            uint32_t split;         /* GPU: columns are summed in parts of so many elements, then those; 0: not */
            uint16_t vectors;       /* of results, whose rows are read one after the other; 0: one, in registers */
            uint16_t vector;    /* GPU: adjacent columns that a lane sums; 0: one */
        } column_reduce;
        struct {
            uint64_t keep;          /* members, by bit, whose rows are kept in scratch rather than computed twice */
            uint16_t held;          /* GPU: elements of a thread, which hold the row in registers; 0: they do not */
            uint16_t vector;    /*   of these, so many adjacent elements in each access (vector width); 0: one */
        } rows;
        struct {                    /* a product by register tiles, on a processor or by threads alone */
            uint16_t mr, nr;        /* rows and columns of the tile: these and kc first in all kinds of products */
            uint32_t kc;            /* block of the contraction, equal to the node's kblock */
            uint32_t rows;          /* that a task iterates over for each tile of columns  [chosen] */
            uint32_t run;           /* tiles lie within runs of so many columns; 0: anywhere */
            uint16_t square;        /* lanes of vectors that are packed, if not whole rows  [chosen] */
            uint8_t pack_b;         /* the second operand is copied into panels */
            uint8_t pack_by;        /* enum sched_pack  [chosen] */
            uint8_t epilogue;       /* enum sched_epilogue  [chosen] */
            /* the operands are prefetched a tile ahead, the arrays of the epilogue as their tile is computed */
            uint8_t prefetch_a, prefetch_b, prefetch_out;
            uint8_t wide;           /* pairs of bf16 that are adjacent in memory are loaded as one */
            uint8_t pad;
            uint16_t lanes;         /* of a vector: last columns take as many vectors as have one  [chosen] */
            uint8_t unused[4];
        } dot;
        struct {                    /* a few rows with a matrix that is read once */
            uint16_t mr, nr;        /* all rows; columns of a vector */
            uint32_t kc;
            uint32_t strip;         /* columns of a task  [chosen] */
            uint16_t step;          /* of the contraction at a time: so many streams  [chosen] */
            uint16_t each;          /* elements of the matrix in one load  [chosen] */
            uint16_t ahead;         /* steps of the contraction from the one at hand to the one prefetched  [chosen] */
            uint16_t widen;         /* the first operand is widened into scratch */
        } dot_skinny;
        struct {                    /* products of bytes by a processor's instructions for them */
            uint16_t mr, nr;
            uint32_t kc;
            uint32_t rows;          /* as of dot  [chosen] */
            uint32_t panel;         /* elements of the contraction in a panel  [chosen] */
            uint16_t lanes;         /* sums in a register: columns are filled up to whole ones  [chosen] */
            uint8_t pack_b;
            uint8_t prefetch_b;     /* the second operand is prefetched, where it is not packed */
        } dot_bytes;
        struct {                    /* on a GPU: blocks of threads, each thread a tile */
            uint16_t mr, nr;
            uint32_t kc;
            uint16_t block_m, block_n;  /* rows and columns of a block */
            uint16_t step;          /* elements of the contraction that are in shared memory at a time */
            uint16_t pad;
            uint32_t split;         /* elements of the contraction in a part, whole steps; 0: no parts */
        } dot_blocks;
        struct {                    /* on a GPU: a few rows with a matrix that is read once */
            uint16_t mr, nr;        /* all rows; adjacent columns of a thread */
            uint32_t kc;
            uint32_t split;         /* elements of the contraction in a part; 0: no parts  [chosen] */
        } gpu_dot_skinny;
        struct {                    /* on a GPU's matrix units: the same, each subgroup a tile */
            uint16_t mr, nr;
            uint32_t kc;
            uint16_t block_m, block_n, step;
            uint16_t subgroup;      /* threads that hold a tile together  [chosen] */
            uint16_t unit_m, unit_n, unit_k; /* what the unit multiplies at once  [chosen] */
            uint8_t copy_a, copy_b; /* the operand is copied in vectors, without a thread that waits for it */
            uint8_t stages;         /* steps that are in shared memory at a time  [chosen] */
            uint8_t async;          /* the unit reads panels in shared memory, while its threads go on (MMA_ASYNC) */
            uint8_t panels;         /* warp specialization: the producer, one more subgroup, loads panels by TMA */
            uint8_t reordered;      /* rows, columns and contraction are in an order in which operands are of vectors */
            uint32_t split;         /* split-K: elements of the contraction in a part, whole steps; 0: no parts */
        } dot_matrix;
        struct {
            uint16_t copy;          /* lanes of the loops that copy a panel whole  [chosen] */
        } scatter;
        struct {                    /* attention_grad and attention_both, too */
            uint16_t rows;          /* that are iterated at a time  [chosen] */
            uint16_t square;        /* lanes of the squares that registers transpose; 0: none are */
            uint16_t widen;         /* half floats that are iterated over are widened a block at a time */
            uint16_t lanes;         /* attention_both: columns of the gradients in k and v at a time  [chosen] */
        } attention;
        struct {                    /* of a single query */
            uint16_t rows;          /* keys at a time, a whole number of vectors  [chosen] */
            uint16_t keys;          /* lanes of vectors of keys  [chosen] */
            uint16_t lanes;         /* of vectors of the values' elements  [chosen] */
        } attention_one;
        struct {                    /* attention and its gradient on a GPU's matrix units */
            uint16_t rows;          /* of a block: queries, or keys for the gradient in k and v  [chosen] */
            uint16_t step;          /* rows of the other side that are in shared memory at a time  [chosen] */
            uint16_t subgroup;      /* threads that hold a tile together  [chosen] */
            uint16_t unit_m, unit_n, unit_k; /* what the unit multiplies at once  [chosen] */
            uint8_t stages;         /* steps that are in shared memory at a time  [chosen] */
            uint8_t async;          /* the unit reads panels in shared memory, while its threads go on (MMA_ASYNC) */
            uint8_t panels;         /* warp specialization: the producer, one more subgroup, loads panels by TMA */
        } attention_matrix;
        struct {                    /* the same in f32, by register tiles: half of a gradient's threads have scores */
            uint16_t rows;          /* of a block: queries, or keys for the gradient in k and v  [chosen] */
        } attention_blocks;
    };
};
_Static_assert(sizeof(struct schedule) == 48, "no padding: schedules are hashed and compared as bytes");

/* ---- schedule.c: the table of fields ---- */
enum sched_form { FORM_NUMBER, FORM_SIDES, FORM_FLAG, FORM_WORD, FORM_SET };
struct sched_field {
    const char *word;           /* in the text */
    uint8_t form;               /* enum sched_form */
    uint8_t offset, size;       /* of the member in struct schedule */
    uint8_t sides;              /* FORM_SIDES: so many members, one behind the other, as AxB or AxBxC */
    bool chosen;                /* 0, which the text does not say: is chosen */
    bool power;                 /* a power of two */
    int64_t min, max;        /* what a user may supply; other than 0 if `chosen` */
    const char *const *name;    /* FORM_WORD: of the values, NULL: no word; `most` is the last */
};
enum { MAX_SCHED_FIELDS = 15 };
struct sched_family { const char *word; const struct sched_field *field; uint32_t n; };
extern const struct sched_family sched_families[SCHED_COUNT];
uint64_t sched_get(const struct schedule *s, const struct sched_field *f, unsigned side);
void sched_set(struct schedule *s, const struct sched_field *f, unsigned side, uint64_t v);
/* The number of a field by its word; MAX_SCHED_FIELDS: the kind has none. */
uint32_t sched_field_find(unsigned kind, const char *word);

/* Why a record is refused: which field (its word; NULL: the kind), and a sentence. */
struct sched_refusal { const char *field; char why[240]; };
bool sched_refuse(struct sched_refusal *r, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));      /* false */
/* Has each field a number that the table allows? */
bool sched_in_range(const struct schedule *s, struct sched_refusal *r);

/* What a user or a tuner supplies: the records of some kernels of some graphs, each with the place of its text. */
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

#endif
