/* Internal header of dumps: a program with all its stages, and functions that show it. */
#ifndef KILN_DUMP_H
#define KILN_DUMP_H
#include "codegen/gpu_codegen.h"
#include "ir/text/text.h"
#include "runtime/runtime.h"

/* ---- dump.c ---- */
bool dump_is_graph_stage(const char *stage);

/* ---- trail.c ---- */
enum { TRAIL_STAGES = 8 };
struct trail {
    const char *name[TRAIL_STAGES]; /* of the graph stages, in order */
    struct graph *graph[TRAIL_STAGES];
    uint32_t n;
    struct placeholders placeholders; /* what is in the last graph's sizes in place of symbols */
    struct program *program;   /* NULL: not planned, or `why` has the reason */
    const struct backend *backend; /* NULL: only the interpreter */
    int device;                    /* whose code generator that is */
    struct err why;
};
/* Runs the passes on a graph and keeps each stage. mark: the call site of each node contains the path of the captured
 * node (trail_origin). false: *e; trail_free in either case. */
bool trail_make(struct trail *t, const struct graph *captured, const struct dump_request *r, bool mark, struct err *e);
/* plans it; sets the program, or the reason why there is none */
void trail_plan(struct trail *t, const struct dump_request *r);
/* The program of the last graph, with the user's schedules; one for all values of symbols has none. */
struct program *dump_plan(const struct trail *t, const struct caps *caps, bool fuse, struct err *e);
void trail_free(struct trail *t);
/* The path of the captured node from which node r of a marked stage comes: its number, or "12/0/3" for node 3 of region
 * 0 of node 12; "": unknown. */
const char *trail_origin(const struct graph *g, ref r);
/* The function of a call site, without the mark. */
void trail_function(const kl_site *s, char *text, size_t n);
/* The group whose kernel, copy or call a command is; GROUP_NONE: a copy without a group. */
uint32_t command_group(const struct program *p, const struct command *c);

/* ---- array_names.c ---- */
/* The names of the arrays of each kernel of the program; array_names_free.  NULL: out of memory. */
struct array_names *array_names(const struct program *p);
void array_names_free(struct array_names *names, uint32_t n); /* of n kernels; NULL is fine */

/* ---- dot.c: for Graphviz ---- */
void dot_graph(const struct graph *g, struct text *t);
void dot_program(const struct program *p, struct text *t); /* kernels and the data flow between them */

/* ---- source_text.c: lines of the user's source files ---- */
struct source_file { char *name, *text; size_t len; }; /* {0} at first */
/* Line `line` (from 1) of a file, without indentation and line break, at most 200 bytes; *len: its length.  NULL: the
 * file cannot be read, is too large or its name is not that of a source file.  Valid until the next call. */
const char *source_line(struct source_file *f, const char *name, int line, size_t *len);
void source_close(struct source_file *f);

/* ---- compress.c ---- */
/* Adds n bytes, compressed (zlib's format, RFC 1950) and in base64 (RFC 4648).  false: out of memory. */
bool put_compressed(struct text *t, const char *bytes, size_t n);

/* ---- html.c ---- */
void html_page(const struct trail *t, const struct graph *captured, const struct dump_request *r, struct text *out);

#endif
