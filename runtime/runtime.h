/* All of the runtime, and what its parts share: forks, log, environment, counters, dumps, options. */
#ifndef KILN_RUNTIME_H
#define KILN_RUNTIME_H
#include "runtime/profile/profile.h"

/* ---- fork.c: locks in order ---- */
extern const struct fork_part accelerators_fork, background_fork, buffer_fork, cache_fork, log_fork, schedules_fork,
    timeline_fork, tuned_fork;                       /* each beside the lock that it is about */
void fork_watch(void);                   /* before a lock of Kiln's is first taken */
void fork_hold(void);                    /* no fork until the code generator is done */
void fork_release(void);

/* ---- log.c: messages to the embedder's function ---- */
void log_use(kl_log_fn *fn, void *ctx, kl_log_level least);
bool log_wants(kl_log_level level);
void log_message(kl_log_level level, const char *message);
void log_put(kl_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- environment.c ---- */
/* Says what is wrong with the KILN_ variables of the environment, a message each. */
void environment_check(void (*say)(void *ctx, const char *text), void *ctx);
void environment_log(void);              /* the same to the log, once, if it takes warnings */
bool environment_switch(const char *name, bool otherwise); /* a variable that may be 0 or 1; otherwise: for all else */
/* is it one of the words with commas between? list may be NULL */
bool word_listed(const char *list, const char *word);

/* ---- counters.c: the rows of counters.def ---- */
struct counters {
#define COUNTER(name, text) atomic_uint_fast64_t name;
#include "counters.def"
};
extern struct counters counters;

/* ---- dump/: what a graph becomes on its way to machine code, for people ---- */
enum dump_form { DUMP_TEXT, DUMP_DOT, DUMP_HTML };
struct dump_request {
    const char *stage;      /* a row of stages.def; a page has all of them */
    enum dump_form form;
    int device;             /* where nodes on the graph's first device go; -1: they stay */
    bool fuse;
    const char *target;     /* kernels for a GPU in this language; NULL: for the devices */
    const struct times *times; /* measured times of the program's commands, for a page; NULL: none */
};
bool dump_is_stage(const char *stage);        /* a row of stages.def */
const char *dump_stage_names(void);           /* all of them, with spaces between */
bool dump_form_of(const char *path, enum dump_form *form); /* what its ending asks for; false: text */
/* Takes a graph, which stays as it is, through the passes and writes a stage.  Of pictures (Graphviz) there are those
 * of graphs and of stage scheduled. */
bool dump_write(const struct graph *captured, const struct dump_request *r, FILE *f, struct err *e);
bool dump_to_file(const struct graph *captured, const struct dump_request *r, const char *path, struct err *e);
/* KILN_DUMP=stage,... KILN_DUMP_DIR=dir, and one request from the API. */
struct dump;
/* What is to be written for a program of this trace name; NULL: nothing.  Takes the request of dump_next_to. */
struct dump *dump_begin(const char *trace);
void dump_graph(void *dump, const char *stage, const struct graph *g); /* pass_options.dump */
/* b may be NULL: no code stages. */
void dump_program(struct dump *d, const struct program *p, const struct backend *b, bool fuse);
void dump_end(struct dump *d);
/* Directory for every stage of the next program built on this thread, as <trace>.<stage>.<ext>; NULL: none. */
void dump_next_to(const char *dir);

/* ---- options.c ---- */
bool option_fuse(void);                  /* KILN_FUSE or the option, default true */
int64_t option_cache_bytes(void);        /* 0: nothing is kept on disk */
int64_t option_program_bytes(void);      /* what programs and kernels in memory may take */
void option_fuse_here(int fuse);         /* for this thread 0 or 1 whatever the option; -1: no longer */
enum { CHECK_NAN = 1, CHECK_INFINITIES };
int option_check_nan(void);              /* 0, or what no output may have: KILN_CHECK or the option */
bool option_verify(void);                /* KILN_CHECK: graphs and plans are verified in release builds, too */
bool option_perf_map(void);              /* KILN_PERF or the option */
bool option_tune(void);                  /* programs are tuned when they are built: KILN_TUNE or the option */
double option_tune_seconds(void);        /* each for so long at most */
bool option_background(void);            /* fused kernels are compiled in the background; not where fuse is given */
bool option_join(void);                  /* kernels that need no barrier between them have none */
/* By their names in options.def. */
bool option_set(const char *name, int64_t value, struct err *e);
bool option_get(const char *name, int64_t *value, struct err *e);

#endif
