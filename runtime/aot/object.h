/* Programs compiled ahead of time.  What is in an object stands in aot/image.h. */
#ifndef KILN_OBJECT_H
#define KILN_OBJECT_H
#include "runtime/runtime.h"

enum { OBJECT_NAME = 64 };
struct object_options {
    const char *prefix; /* of all names, a C identifier; NULL: the graph's name, made one */
    const char *cpu;    /* "baseline" (also NULL), "native", .. */
    bool source;        /* C99 instead of an object: a file that needs nothing but a compiler */
    bool fuse;
    const bool *fixed;  /* per slot, or NULL: it is compiled in, with these bits, */
    const uint64_t *slot;
    const void *const *state; /* per state, or NULL: its value (NULL: none), which the object gets, */
    bool weights_apart;       /* or object_made.weights, */
    size_t weights_at;        /* there behind those of the programs before: set by object_file_add */
};
struct object_made {
    struct code code;   /* the object file, or the C's text */
    char *header;       /* the text of its C header */
    unsigned char *weights; /* what stands in a file of its own; NULL: nothing */
    size_t weights_bytes;
    char functions[256], cpu[64]; /* functions: what it defines to run programs, for a message */
    uint32_t kernels;
    int64_t workspace_bytes; /* of temporaries: the most of a program */
};

/* ---- object.c ---- */
/* The program of a graph, planned, its kernels lowered, and its image, for mem_free; NULL: *e. */
struct program *object_program(const struct graph *captured, const struct object_options *o, const struct caps *target,
                               unsigned char **image, uint32_t *image_bytes, struct err *e);
size_t object_state_bytes(const struct graph *g, uint32_t i);
/* Size of the struct of arguments; slot_at[i] (or NULL): where in it slot i lies, SIZE_MAX for one that is fixed. */
size_t object_args_layout(const struct graph *g, const bool *fixed, size_t *slot_at);
/* Where the value of a state stands among the weights that are apart; that of number g->state.n: behind the last. */
size_t object_weight_at(const struct graph *g, const struct object_options *o, uint32_t state);

/* ---- object_file.c ---- a file of several programs */
/* The processor and the language, as object_options has them; NULL: *e. */
struct object_file *object_file_new(const char *cpu, bool source, struct err *e);
/* false: *e, and the file is as before. */
bool object_file_add(struct object_file *f, const struct graph *captured, const struct object_options *o,
                     struct err *e);
bool object_file_finish(struct object_file *f, struct object_made *out, struct err *e); /* as object_make */
void object_file_free(struct object_file *f);
/* One program.  false: *e.  Else the caller gives it to object_made_free. */
bool object_make(const struct graph *captured, const struct object_options *o, struct object_made *out, struct err *e);
void object_made_free(struct object_made *made);
/* Writes the files; false: *e, and none is there. */
/* weights_path: for made->weights. */
bool object_write(const struct object_made *made, const char *object_path, const char *header_path,
                  const char *weights_path, struct err *e);

/* ---- object_header.c ---- */
/* The name as a prefix; one that has to be given as it is (exact) and is no C identifier is refused. */
bool object_prefix(const char *name, bool exact, char out[OBJECT_NAME], struct err *e);
/* mem_free it; NULL: out of memory. */
char *object_header(const struct graph *g, const struct object_options *o, const char *prefix, const char *cpu);
enum object_member { MEMBER_IN, MEMBER_STATE, MEMBER_OUT, MEMBER_SLOT };
enum { OBJECT_MEMBER = 48 };
/* The name of a member of the struct of arguments: in_NAME, state_NAME, out_NUMBER, slot_NAME. */
/* Slots of one name and dtype are one member: the number of the first. */
uint32_t object_slot(const struct graph *g, uint32_t slot);
void object_member(const struct graph *g, enum object_member kind, uint32_t ordinal, char out[OBJECT_MEMBER]);

/* ---- object_source.c ---- */
/* A program's functions as C, behind what the C backend makes. */
struct text;
void object_functions(struct text *t, const struct graph *g, const struct object_options *o, const char *prefix);

#endif
