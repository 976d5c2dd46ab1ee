/* Programs compiled ahead of time. image.h describes the content of an object. */
#ifndef KILN_OBJECT_H
#define KILN_OBJECT_H
#include "runtime/runtime.h"

enum { OBJECT_NAME = 64 };
struct object_options {
    const char *prefix; /* of all names, a C identifier; NULL: derived from the graph's name */
    const char *cpu;    /* "baseline" (also NULL), "native", .. */
    bool source;        /* C99 instead of an object: a file that needs only a compiler */
    bool fuse;
    const bool *fixed;  /* per slot, or NULL: whether it is compiled in with these bits */
    const uint64_t *slot;
    const int64_t *length;    /* per slot, or NULL: the length of the graph that it is, or 0 */
    const void *const *state; /* per state, or NULL: its value (NULL: none), which is stored in the object */
    bool weights_separate;    /* or in object_made.weights */
    size_t weights_at;        /* the offset there, after the weights of earlier programs: set by object_file_add */
};
struct object_made {
    struct code code;   /* the object file, or the text of the C file */
    char *header;       /* the text of its C header */
    unsigned char *weights; /* the content of the weights file; NULL: none */
    size_t weights_bytes;
    char functions[256], cpu[64]; /* functions: those that run programs, for a message */
    uint32_t kernels;
    int64_t workspace_bytes; /* bytes of temporaries: the maximum over the programs */
};

/* ---- object.c ---- */
/* The planned program of a graph with lowered kernels, and its image, for mem_free; NULL: *e. */
struct program *object_program(const struct graph *captured, const struct object_options *o, const struct caps *target,
                               unsigned char **image, uint32_t *image_bytes, struct err *e);
size_t object_state_bytes(const struct graph *g, uint32_t i);
/* Size of the struct of arguments; slot_at[i] (or NULL): the offset of slot i in it, SIZE_MAX if it is fixed. */
size_t object_args_layout(const struct graph *g, const bool *fixed, size_t *slot_at);
static inline uint32_t object_symbols(const struct graph *g) { return g->symbols ? g->symbols->n : 0; }
size_t object_symbol_at(const struct graph *g, uint32_t symbol); /* the offset of a symbol's value in the struct */
/* A program's part of the weights file begins with a header of OBJECT_WEIGHTS_HEADER bytes: the letters KILNWTS1, the
 * hash of the program's graph, and the bytes of the part, little-endian, OBJECT_WEIGHTS_ID in all, then zeros. */
enum { OBJECT_WEIGHTS_ID = 32, OBJECT_WEIGHTS_HEADER = 64 };
void object_weights_header(const struct graph *g, const struct object_options *o, unsigned char out[OBJECT_WEIGHTS_ID]);
/* The offset of a state's value in the weights file; for number g->state.n: the end. */
size_t object_weight_at(const struct graph *g, const struct object_options *o, uint32_t state);

/* ---- object_symbols.c: what a run computes from the symbols' values, as postfix code ---- */
enum { OBJECT_STEPS = 256 };
struct image_step;
/* Each writes at most OBJECT_STEPS steps and returns their number.  0: there are too many, or, of a kernel, all
 * iterations do something. */
uint32_t object_active(const struct kernel *k, struct image_step *out);
uint32_t object_length(const struct graph *g, int64_t length, struct image_step *out);
/* Of the sum that placeholder i stands for; slots are numbers of symbols. */
uint32_t object_sum(const struct graph *g, const struct placeholders *s, uint32_t i, struct image_step *out);
struct image_symbol;
/* The symbols, then the sums, without their steps. */
void object_put_symbols(const struct graph *g, const struct placeholders *s, struct image_symbol *out);

/* ---- object_file.c: a file of several programs ---- */
/* The processor and the language as in object_options; NULL: *e. */
struct object_file *object_file_new(const char *cpu, bool source, struct err *e);
/* false: *e, and the file is as before. */
bool object_file_add(struct object_file *f, const struct graph *captured, const struct object_options *o,
                     struct err *e);
bool object_file_finish(struct object_file *f, struct object_made *out, struct err *e); /* as object_make */
void object_file_free(struct object_file *f);
/* Makes an object of one program; object_made_free it. false: *e. */
bool object_make(const struct graph *captured, const struct object_options *o, struct object_made *out, struct err *e);
void object_made_free(struct object_made *made);
/* Writes the files; false: *e, and none of them exists.
 * weights_path: for made->weights. */
bool object_write(const struct object_made *made, const char *object_path, const char *header_path,
                  const char *weights_path, struct err *e);

/* ---- object_header.c ---- */
/* Converts a name to a prefix; with `exact` a name that is no C identifier is refused. */
bool object_prefix(const char *name, bool exact, char out[OBJECT_NAME], struct err *e);
/* mem_free it; NULL: out of memory. */
char *object_header(const struct graph *g, const struct object_options *o, const char *prefix, const char *cpu);
enum object_member { MEMBER_IN, MEMBER_STATE, MEMBER_OUT, MEMBER_SLOT, MEMBER_LENGTH };
enum { OBJECT_MEMBER = 48 };
/* Slots of one name and dtype are one member: the number of the first such slot. */
uint32_t object_slot(const struct graph *g, uint32_t slot);
/* The name of a member of the struct of arguments: in_NAME, state_NAME, out_NUMBER, slot_NAME, length_SYMBOL. */
void object_member(const struct graph *g, enum object_member kind, uint32_t ordinal, char out[OBJECT_MEMBER]);

/* ---- object_source.c ---- */
/* A program's functions as C, after the code of the C backend. */
struct text;
void object_functions(struct text *t, const struct graph *g, const struct object_options *o, const char *prefix);

#endif
