/* Common header of the runtime: fork, log, environment, counters, dumps, options. */
#ifndef KILN_RUNTIME_H
#define KILN_RUNTIME_H
#include "runtime/profile/profile.h"

/* Thread-local, and found without a call.  This TLS model makes all thread-local data of the library static, and a host
 * that opens the library at run time has few bytes of static TLS left: tests/exports.sh allows 64. */
#if defined(__GNUC__) && defined(__ELF__)
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL _Thread_local
#endif

/* ---- fork.c: locks at a fork, in nesting order ---- */
extern const struct fork_part accelerators_fork, async_fork, background_fork, buffer_fork, cache_fork, log_fork,
    schedules_fork, timeline_fork, tuned_fork;       /* each is defined beside its lock */
void fork_watch(void);                   /* called before a lock of Kiln's is first taken */
void fork_hold(void);                    /* delays forks until the code generator is done */
void fork_release(void);

/* ---- log.c: messages to the host program's function, and to KILN_LOG's file ---- */
void log_from_environment(void);         /* starts what KILN_LOG asks for, once */
const char *log_level_name(kl_log_level level);
bool log_setting_parse(const char *value, kl_log_level *level, const char **file); /* file NULL: stderr */
int log_file_open(const char *path);     /* -1: errno */
void log_use(kl_log_fn *fn, void *ctx, kl_log_level min);
bool log_wants(kl_log_level level);
void log_message(kl_log_level level, const char *message);
void log_put(kl_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- cancel.c ---- */
/* What can end this thread's runs and compilations, for the calls that follow; NULL: nothing.  *c is the caller's. */
void cancellation_here(const struct cancellation *c);
const struct cancellation *cancellation_current(void);

/* ---- environment.c ---- */
/* Reports invalid KILN_ variables of the environment, with one call for each. */
void environment_check(void (*say)(void *ctx, const char *text), void *ctx);
void environment_log(void);              /* reports them to the log, once, if it accepts warnings */
/* a variable that may be 0 or 1; otherwise: the value if it is anything else */
bool environment_switch(const char *name, bool otherwise);
/* is it one of the comma-separated words? list may be NULL */
bool word_listed(const char *list, const char *word);

/* ---- counters.c: the rows of counters.def ---- */
struct counters {
#define COUNTER(name, text) atomic_uint_fast64_t name;
#include "counters.def"
};
extern struct counters counters;

/* ---- dump/: the stages of a graph on its way to machine code, as text and pictures ---- */
enum dump_form { DUMP_TEXT, DUMP_DOT, DUMP_HTML };
struct dump_request {
    const char *stage;      /* a row of stages.def; a page has all stages */
    enum dump_form form;
    int device;             /* the device for nodes on the graph's first device; -1: unchanged */
    bool fuse;
    const char *target;     /* language of GPU kernels to make; NULL: kernels for the graph's devices */
    const struct times *times; /* measured times of the program's commands, for a page; NULL: none */
};
bool dump_is_stage(const char *stage);        /* a row of stages.def */
const char *dump_stage_names(void);           /* all stages, separated by spaces */
bool dump_form_of(const char *path, enum dump_form *form); /* the form for the path's ending; false: text */
/* Runs the passes on a copy of the graph and writes one stage.  Pictures (Graphviz) exist for graph stages and stage
 * scheduled. */
bool dump_write(const struct graph *captured, const struct dump_request *r, FILE *f, struct err *e);
bool dump_to_file(const struct graph *captured, const struct dump_request *r, const char *path, struct err *e);
/* KILN_DUMP=stage,... KILN_DUMP_DIR=dir, and a single request from the API. */
struct dump;
/* The dump to write for a program of this trace name; NULL: none.  Consumes the request of dump_next_to. */
struct dump *dump_begin(const char *trace);
void dump_graph(void *dump, const char *stage, const struct graph *g); /* pass_options.dump */
/* b may be NULL: no code stages. */
void dump_program(struct dump *d, const struct program *p, const struct backend *b, bool fuse);
void dump_end(struct dump *d);
/* Sets the directory for all stages of the next program built on this thread, as <trace>.<stage>.<ext>; NULL: none. */
void dump_next_to(const char *dir);
/* Requests again what dump_next_to had requested: the program turned out to be several, of which one is built next. */
void dump_again(const struct dump *d);

/* ---- options.c ---- */
bool option_fuse(void);                  /* KILN_FUSE or the option, default true */
bool option_graph_order(void);           /* GPUs add in the graph's order: KILN_ORDER or the option */
/* The option's value by its word, graph or schedule; -1: there is no such word. */
int option_order_of(const char *word);
int64_t option_cache_bytes(void);        /* 0: nothing is kept on disk */
int64_t option_program_bytes(void);      /* the limit of programs and kernels in memory */
void option_fuse_here(int fuse);         /* for this thread 0 or 1, overriding the option; -1: no override */
enum { CHECK_NAN = 1, CHECK_INFINITIES };
int option_check_nan(void);              /* 0, or the values that outputs must not have: KILN_CHECK or the option */
bool option_verify(void);                /* KILN_CHECK: graphs and plans are verified in release builds, too */
bool option_perf_map(void);              /* KILN_PERF or the option */
bool option_tune(void);                  /* programs are tuned before their second run: KILN_TUNE or the option */
double option_tune_seconds(void);        /* the limit for each */
/* fused kernels are compiled in the background; not if option_fuse_here is set */
bool option_background(void);
bool option_arena_of_bounds(void);       /* of a program for all values of symbols */
bool option_elide_barriers(void);        /* barriers that no kernel needs are omitted */
/* By the names in options.def. */
bool option_set(const char *name, int64_t value, struct err *e);
bool option_get(const char *name, int64_t *value, struct err *e);

#endif
