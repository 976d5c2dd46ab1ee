/* Kernels kept on disk: what is in their keys, who may use the folder, and that whatever happens to an entry, the
 * results are the same bits and the worst is a kernel compiled again.
 *
 * A process keeps the kernels that it has loaded, so a process that is to use the disk is forked from this one, which
 * has opened the code generator but runs no graph on cpu itself. */
#define _GNU_SOURCE
#include "tests/support/harness.h"
#include "tests/support/deadlines.h"
#include <fcntl.h>
#include <kiln/kiln.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRAPHS = 6, LENGTH = 40 };
static char folder[64], path[256];
static struct graph *graph[GRAPHS];
static struct values input, want[GRAPHS];

/* ---- graphs that share some kernels, and what they give ---- */

static void make_graphs(void)
{
    struct rng r = {11};
    struct err e = {0};
    struct shape s = shape_make(1, (int64_t[]){LENGTH});
    for (int i = 0; i < GRAPHS; i++) {
        struct graph *g = graph[i] = graph_new("kept");
        ref x = n_input(g, KL_F32, &s, "x"), y = n_mul(g, x, n_k(g, x, 2 + i / 2));
        graph_output(g, OUT_RETURN, n_tanh(g, y), 0);
        graph_output(g, OUT_RETURN, n_reduce(g, i % 2 ? OP_sum : OP_reduce_max, n_add(g, x, y), 1), 0);
        if (!i)
            values_random(&r, g, &g->input, false, &input);
        check(run_on(g, "ref", true, &input, &(struct values){0}, NULL, &want[i], &e), "graph %d on ref: %s", i, e.msg);
    }
}

/* The graph's values on cpu are those of the interpreter. */
static bool right(int i)
{
    struct err e = {0};
    struct values got = {0};
    bool ok = run_on(graph[i], "cpu", true, &input, &(struct values){0}, NULL, &got, &e);
    int64_t at;
    for (uint32_t o = 0; ok && o < got.n; o++)
        ok = same_values(KL_F32, got.v[o], want[i].v[o], o ? 1 : LENGTH, &at);
    values_free(&got);
    return ok;
}

/* ---- processes ---- */

static uint64_t count_of(const atomic_uint_fast64_t *c) { return atomic_load(c); }

/* What a child found: whether results were right, and its counters. */
struct report { bool ok; uint64_t compiles, hits, misses, lowered; };

static struct report finish_child(pid_t pid, int fd)
{
    struct report r = {0};
    int status = 1;
    if (read(fd, &r, sizeof r) != (ssize_t)sizeof r)
        r.ok = false;
    close(fd);
    waitpid(pid, &status, 0);
    r.ok &= WIFEXITED(status) && !WEXITSTATUS(status);
    return r;
}

static pid_t start_child(bool (*run)(void), int *fd)
{
    int ends[2];
    if (pipe(ends))
        return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        end_when_stuck();
        struct report r = {.ok = run(), .compiles = count_of(&counters.compiles), .hits = count_of(&counters.disk_hits),
                           .misses = count_of(&counters.disk_misses), .lowered = atomic_load(&lower_misses)};
        _exit(write(ends[1], &r, sizeof r) != (ssize_t)sizeof r);
    }
    close(ends[1]);
    *fd = ends[0];
    return pid;
}

static struct report in_child(bool (*run)(void))
{
    int fd = -1;
    pid_t pid = start_child(run, &fd);
    return pid < 0 ? (struct report){0} : finish_child(pid, fd);
}

static bool run_first(void) { return right(0); }

static bool run_all(void)
{
    bool ok = true;
    for (int i = 0; i < GRAPHS; i++)
        ok &= right(i);
    return ok;
}

/* ---- the folder ---- */

static const char *in_folder(const char *file)
{
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return path;
}

static bool empty_folder(void)
{
    struct disk_entries gone;
    struct err e = {0};
    return check(disk_prune(0, &gone, &e), "to empty the folder: %s", e.msg);
}

static struct disk_entries entries(void)
{
    struct disk_entries all = {0};
    struct err e = {0};
    check(disk_list(&all, &e), "to list the folder: %s", e.msg);
    return all;
}

static uint32_t damaged(void)
{
    struct disk_entries all = entries();
    uint32_t n = 0;
    for (uint32_t i = 0; i < all.n; i++) {
        struct err e = {0};
        n += !all.v[i].temporary && !disk_verify(&all.v[i], &e);
    }
    mem_free(all.v);
    return n;
}

static void test_second_process(void)
{
    empty_folder();
    struct report cold = in_child(run_all), warm = in_child(run_all);
    check(cold.ok && cold.compiles >= GRAPHS && cold.hits == 0 && cold.misses == cold.compiles,
          "the first process compiles %d kernels and finds %d", (int)cold.compiles, (int)cold.hits);
    check(warm.ok && warm.compiles == 0 && warm.hits == cold.compiles && warm.misses == 0,
          "the second compiles %d and finds %d", (int)warm.compiles, (int)warm.hits);
    struct disk_entries all = entries();
    struct stat s;
    check(all.n == cold.compiles && damaged() == 0, "an entry a kernel, each whole: %u", all.n);
    check(!stat(folder, &s) && (s.st_mode & 0777) == 0700, "the folder is made for its user alone");
    check(all.n && !stat(in_folder(all.v[0].file), &s) && (s.st_mode & 0777) == 0600, "and so are entries");
    mem_free(all.v);
}

static void *run_in_thread(void *start)
{
    static atomic_int turn;
    int first = atomic_fetch_add(&turn, 1);
    bool ok = true;
    pthread_barrier_wait(start);
    for (int i = 0; i < GRAPHS; i++)
        ok &= right((first + i) % GRAPHS);
    return ok ? start : NULL;
}

static bool run_threads(void)
{
    enum { THREADS = 8 };
    pthread_t t[THREADS];
    pthread_barrier_t start;
    bool ok = true;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        ok &= !pthread_create(&t[i], NULL, run_in_thread, &start);
    for (int i = 0; ok && i < THREADS; i++) {
        void *fine = NULL;
        pthread_join(t[i], &fine);
        ok &= fine != NULL;
    }
    return ok;
}

/* 8 threads in each of 4 processes. */
static void test_crowd(int rounds)
{
    enum { PROCESSES = 4 };
    for (int round = 0; round < rounds; round++) {
        empty_folder();
        pid_t pid[PROCESSES];
        int fd[PROCESSES];
        bool ok = true;
        for (int i = 0; i < PROCESSES; i++)
            pid[i] = start_child(run_threads, &fd[i]);
        for (int i = 0; i < PROCESSES; i++)
            ok &= pid[i] > 0 && finish_child(pid[i], fd[i]).ok;
        check(ok, "8 threads in each of 4 processes: right results, round %d", round);
        struct report after = in_child(run_all);
        check(after.ok && after.compiles == 0 && damaged() == 0,
              "nothing is left to compile, nothing damaged, round %d", round);
    }
}

/* ---- keys ---- */

static struct caps fake_caps;
static const char *fake_text;
static bool give_caps(struct caps *out, struct err *e)
{
    (void)e;
    *out = fake_caps;
    return true;
}
static const char *give_version(void) { return fake_text; }
static const struct backend fake = {.name = "fake", .abi = KERNEL_ABI, .caps = give_caps, .version = give_version};

static bool make_key(struct disk_key *key, const struct kernel *k)
{
    struct caps caps;
    struct err e = {0};
    return give_caps(&caps, &e) && disk_key_make(key, k, &fake, &caps);
}

static struct kernel *small_kernel(void)
{
    struct kernel *k = kernel_new("small");
    uint32_t out = k_buf(k, BUF_OUT, KL_F32, 8, 0);
    k_store(k, out, k_int(k, 3), k_const(k, KL_F32, 1.5), 0);
    return k;
}

static struct hash128 key_of(const struct kernel *k)
{
    struct disk_key key;
    check(make_key(&key, k), "a key");
    struct hash128 h = key.hash;
    disk_key_free(&key);
    return h;
}

static void test_keys(void)
{
    struct kernel *k = small_kernel();
    fake_text = "one";
    fake_caps = (struct caps){.name = "cpu1", .features = "+a,+b", .vector_bytes = 32, .threads = 2};
    struct hash128 base = key_of(k);
#define SAME() (key_of(k).lo == base.lo && key_of(k).hi == base.hi)
    check(SAME(), "the same kernel has the same key");
    fake_caps.threads = 64;
    snprintf(k->name, sizeof k->name, "other");
    check(SAME(), "threads and the kernel's name are not in it");
    fake_text = "two";
    check(!SAME(), "the generator's version is");
    fake_text = "one";
    fake_caps.name[3] = '2';
    check(!SAME(), "the processor's name is");
    fake_caps.name[3] = '1';
    fake_caps.features[4] = 'c';
    check(!SAME(), "its features are");
    fake_caps.features[4] = 'b';
    fake_caps.vector_bytes = 16;
    check(!SAME(), "the vectors used are");
    fake_caps.vector_bytes = 32;
    k->sched.grain++;
    check(!SAME(), "the schedule is");
    k->sched.grain--;
    k->inst[1].imm++;
    check(!SAME(), "the instructions are");
    k->inst[1].imm--;
    k->buf[0].count++;
    check(!SAME(), "the buffers are");
    k->buf[0].count--;
    check(SAME(), "and nothing else has changed");
#undef SAME
    kernel_free(k);
}

/* ---- damage ---- */

struct file { char *bytes; size_t size; };

static struct file read_file(const char *name)
{
    struct file f = {calloc(1, 1 << 20), 0};
    int fd = open(name, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, f.bytes, 1 << 20);
    check(n > 0, "to read %s", name);
    f.size = n > 0 ? (size_t)n : 0;
    close(fd);
    return f;
}

static void write_file(const char *name, const char *bytes, size_t size)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
        check(false, "to write %s", name);
    close(fd);
}

/* The entry as it was, or none: nothing in between. */
static bool loads(const struct disk_key *key, const char *code, size_t size, bool *found)
{
    struct disk_code c;
    *found = disk_load(key, &c);
    bool ok = !*found || (c.code.size == size && !memcmp(c.code.bytes, code, size));
    if (*found)
        mem_free(c.file);
    return ok;
}

/* Every byte, with every bit of it and others flipped, and every length. */
static void test_every_byte(void)
{
    enum { CODE = 700 };
    char code[CODE];
    struct rng r = {5};
    struct kernel *k = small_kernel();
    struct disk_key key;
    struct disk_entries all;
    bool found, ok = true, none = true;
    empty_folder();
    for (int i = 0; i < CODE; i++)
        code[i] = (char)rng_next(&r);
    make_key(&key, k);
    disk_store(&key, &(struct code){code, CODE});
    check(loads(&key, code, CODE, &found) && found, "what was stored is loaded");
    all = entries();
    if (check(all.n == 1, "one entry")) {
        struct file f = read_file(in_folder(all.v[0].file));
        for (size_t i = 0; i < f.size; i++)
            for (int bit = 0; bit < 9; bit++) {
                char flip = (char)(bit < 8 ? 1 << bit : 0xff);
                f.bytes[i] ^= flip;
                if (bit % 4 == (int)(i % 4) || bit == 8) {
                    write_file(path, f.bytes, f.size);
                    ok &= loads(&key, code, CODE, &found);
                    none &= !found;
                }
                f.bytes[i] ^= flip;
            }
        check(ok && none, "an entry with a byte flipped is none");
        ok = none = true;
        for (size_t n = 0; n < f.size; n++) {
            write_file(path, f.bytes, n);
            ok &= loads(&key, code, CODE, &found);
            none &= !found;
        }
        check(ok && none, "an entry cut anywhere is none");
        f.bytes[f.size] = 1;
        write_file(path, f.bytes, f.size + 1);
        check(loads(&key, code, CODE, &found) && !found, "nor is a longer one");
        write_file(path, f.bytes, f.size);
        check(loads(&key, code, CODE, &found) && found, "as it was, it is one again");
        char other[256];
        snprintf(other, sizeof other, "%s/%032d.kernel", folder, 7);
        check(!rename(path, other) && damaged() == 1, "an entry with the name of another is damaged");
        free(f.bytes);
    }
    mem_free(all.v);
    disk_key_free(&key);
    kernel_free(k);
}

/* An entry that others may write to, or of another user, is not executed: it is compiled again. */
static void test_entry_owner(void)
{
    empty_folder();
    struct report cold = in_child(run_first);
    struct disk_entries all = entries();
    if (check(cold.ok && all.n > 0, "a program's kernels are on disk")) {
        const char *name = in_folder(all.v[0].file);
        chmod(name, 0666);
        check(damaged() == 1, "an entry that others may write to is whole");
        struct report open = in_child(run_first), again = in_child(run_first);
        check(open.ok && open.compiles == 1 && again.compiles == 0, "others may write to it: %d compiled, then %d",
              (int)open.compiles, (int)again.compiles);
        if (!chown(name, geteuid() + 1, (gid_t)-1)) { /* root alone can */
            struct report foreign = in_child(run_first);
            check(foreign.ok && foreign.compiles == 1, "of another user: %d compiled", (int)foreign.compiles);
        }
    }
    mem_free(all.v);
}

/* The same with real programs: what is damaged is compiled again, and is whole again after that. */
static void test_damaged_programs(int rounds)
{
    struct rng r = {6};
    empty_folder();
    struct report cold = in_child(run_first);
    struct disk_entries all = entries();
    check(cold.ok && all.n == cold.compiles && all.n > 0, "a program's kernels are on disk");
    for (int round = 0; round < rounds && all.n; round++) {
        const char *name = in_folder(all.v[rng_below(&r, all.n)].file);
        struct file f = read_file(name);
        size_t at = (size_t)rng_below(&r, (int64_t)f.size);
        if (round % 2)
            f.bytes[at] ^= (char)(1 + rng_below(&r, 255));
        write_file(name, f.bytes, round % 2 ? f.size : at);
        free(f.bytes);
        struct report broken = in_child(run_first), again = in_child(run_first);
        check(broken.ok && broken.compiles == 1 && broken.misses == 1 && again.ok && again.compiles == 0,
              "byte %zu %s: %d compiled, then %d", at, round % 2 ? "flipped" : "cut", (int)broken.compiles,
                  (int)again.compiles);
    }
    mem_free(all.v);
}

/* Links, pipes and folders in the place of entries are none; and code that does not load is compiled again. */
static void test_strange_entries(void)
{
    empty_folder();
    in_child(run_first);
    struct disk_entries all = entries();
    for (uint32_t i = 0; i < all.n; i++) {
        char aside[256];
        snprintf(aside, sizeof aside, "%s/aside%u", folder, i);
        in_folder(all.v[i].file);
        bool made = !rename(path, aside) && (i % 3 == 0 ? !symlink(aside, path) : i % 3 == 1 ? !mkfifo(path, 0600)
                                             : !mkdir(path, 0700));
        check(made, "something else for entry %u", i);
    }
    struct report r = in_child(run_first);
    check(r.ok && r.hits == 0 && r.compiles == all.n, "links, pipes and folders are no entries: %d found", (int)r.hits);
    for (uint32_t i = 0; i < all.n; i++) {
        char aside[256];
        snprintf(aside, sizeof aside, "%s/aside%u", folder, i);
        unlink(aside);
        rmdir(in_folder(all.v[i].file));
    }
    mem_free(all.v);
}

/* ---- a writer killed at any moment ---- */

static char big[600000];

static void write_for_ever(const struct disk_key *key)
{
    for (;;)
        disk_store(key, &(struct code){big, sizeof big});
}

static void test_killed(int times)
{
    struct kernel *k = small_kernel();
    struct disk_key key;
    struct rng r = {7};
    bool found, ok = true;
    int seen = 0;
    empty_folder();
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)rng_next(&r);
    make_key(&key, k);
    for (int i = 0; i < times; i++) {
        if (i % 10 == 0)
            empty_folder();
        pid_t pid = fork();
        if (!pid)
            write_for_ever(&key);
        for (int ms = 0; i % 10 == 5 && ms < WAIT_MS && loads(&key, big, sizeof big, &found) && !found; ms++)
            /* now and then a whole entry, however slow the machine is */
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        nanosleep(&(struct timespec){0, rng_below(&r, 3000000)}, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        ok &= loads(&key, big, sizeof big, &found);
        seen += found;
    }
    check(ok && damaged() == 0, "writers killed leave whole entries or none");
    check(seen > 0, "they had written before");
    write_file(in_folder("tmp-1-1"), "x", 1);
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    utimensat(AT_FDCWD, path, old, 0);
    write_file(in_folder("tmp-1-2"), "x", 1);
    write_file(in_folder("notes"), "x", 1);
    struct disk_entries gone;
    struct err e = {0};
    check(disk_prune(INT64_MAX, &gone, &e) && gone.n == 1 && access(in_folder("tmp-1-1"), F_OK),
          "old temporary files go");
    check(!access(in_folder("tmp-1-2"), F_OK), "new ones stay");
    check(empty_folder() && access(in_folder("tmp-1-2"), F_OK) && !access(in_folder("notes"), F_OK),
          "and what is not the cache's is never touched");
    unlink(path);
    disk_key_free(&key);
    kernel_free(k);
}

/* ---- the bound ---- */

static void test_bound(void)
{
    enum { N = 200 };
    struct kernel *k = small_kernel();
    struct disk_key key[N];
    struct err e = {0};
    struct disk_entries gone, all;
    bool found;
    empty_folder();
    for (int i = 0; i < N; i++) {
        k->inst[1].imm = (uint64_t)i;
        make_key(&key[i], k);
    }
    for (int i = 0; i < 8; i++) {
        char file[64];
        disk_store(&key[i], &(struct code){big, 1000});
        snprintf(file, sizeof file, "%016" PRIx64 "%016" PRIx64 ".kernel", key[i].hash.hi, key[i].hash.lo);
        struct timespec t[2] = {{2000 + i, 0}, {2000 + i, 0}};
        check(!utimensat(AT_FDCWD, in_folder(file), t, 0), "entry %d is there", i);
    }
    check(loads(&key[0], big, 1000, &found) && found, "the oldest entry is used");
    all = entries();
    check(all.n == 8 && disk_prune(all.bytes / 8 * 3, &gone, &e) && gone.n == 5, "five of eight are pruned");
    for (int i = 0; i < 8; i++)
        check(loads(&key[i], big, 1000, &found) && found == (i == 0 || i > 5), "the least recently used: %d", i);
    mem_free(all.v);

    int64_t kept = option_cache_bytes();
    check(option_set("cache_bytes", 20000, &e), "a small bound");
    for (int i = 0; i < N; i++)
        disk_store(&key[i], &(struct code){big, 1000});
    all = entries();
    check(all.bytes <= 20000 && all.n > 5, "the folder stays within its bound: %d entries, %d bytes", (int)all.n,
          (int)all.bytes);
    mem_free(all.v);
    empty_folder();
    disk_store(&key[0], &(struct code){big, 30000});
    check(loads(&key[0], big, 30000, &found) && !found, "what is larger than all of it is not kept");
    check(option_set("cache_bytes", 0, &e) && *kl_cache_off_reason() && in_child(run_first).ok, "without a cache");
    check(!option_set("cache_bytes", -1, &e) && option_set("cache_bytes", kept, &e), "options");
    for (int i = 0; i < N; i++)
        disk_key_free(&key[i]);
    kernel_free(k);
}

/* ---- lowered groups ---- */

enum { STEPS = 40 };
static struct graph *long_graph;
static struct values long_want;

static void make_long_graph(void)
{
    struct err e = {0};
    struct shape s = shape_make(1, (int64_t[]){LENGTH});
    struct graph *g = long_graph = graph_new("long");
    ref x = n_input(g, KL_F32, &s, "x");
    for (int i = 0; i < STEPS; i++) {
        x = n_tanh(g, n_mul(g, x, n_k(g, x, 1.5 + i)));
        graph_output(g, OUT_RETURN, n_reduce(g, i % 2 ? OP_sum : OP_reduce_max, x, 1), 0);
    }
    check(run_on(g, "ref", true, &input, &(struct values){0}, NULL, &long_want, &e), "on ref: %s", e.msg);
}

static bool run_long(void)
{
    struct err e = {0};
    struct values got = {0};
    bool ok = run_on(long_graph, "cpu", true, &input, &(struct values){0}, NULL, &got, &e);
    int64_t at;
    for (uint32_t o = 0; ok && o < got.n; o++)
        ok = same_values(KL_F32, got.v[o], long_want.v[o], 1, &at);
    values_free(&got);
    return ok;
}

static void test_lowered(void)
{
    empty_folder();
    make_long_graph();
    struct report first = in_child(run_long), second = in_child(run_long);
    check(first.ok && first.lowered > 0, "a first process lowers %d groups", (int)first.lowered);
    check(second.ok && second.lowered == 0 && second.compiles == 0, "the second one none: %d", (int)second.lowered);
    values_free(&long_want);
    graph_free(long_graph);
}

/* ---- who may use it ---- */

static void refused(const char *what, const char *phrase)
{
    const char *why = kl_cache_off_reason();
    check(strstr(why, phrase), "%s: \"%s\"", what, why);
    struct report r = in_child(run_first);
    check(r.ok && r.hits == 0 && r.compiles > 0, "%s: it is not read, and results are right", what);
}

/* A folder in which nothing can be kept is named as the reason: on a file system that is full (here: no file may have a
 * byte), and on one that takes no files. */
static void test_nothing_kept(void)
{
    struct rlimit given, none;
    char keep[4096];
    empty_folder();
    check(!*kl_cache_off_reason(), "a folder of one's own: %s", kl_cache_off_reason());
    check(entries().n == 0, "what was tried is gone");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &given);
    none = given;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_FSIZE, &none);
    bool full = strstr(kl_cache_off_reason(), "nothing can be written there") != NULL;
    setrlimit(RLIMIT_FSIZE, &given);
    signal(SIGXFSZ, SIG_DFL);
    check(full, "a full file system");
    snprintf(keep, sizeof keep, "%s", getenv("KILN_CACHE_DIR"));
    setenv("KILN_CACHE_DIR", "/proc/self/task", 1);
    check(strstr(kl_cache_off_reason(), "/proc/self/task: nothing can be written there"), "no files: \"%s\"",
          kl_cache_off_reason());
    setenv("KILN_CACHE_DIR", keep, 1);
}

static void test_refused(void)
{
    empty_folder();
    in_child(run_first);
    check(!*kl_cache_off_reason() && in_child(run_first).hits > 0, "a folder of one's own: %s", kl_cache_off_reason());
    chmod(folder, 0777);
    refused("writable by all", "can be written by others (mode 777)");
    chmod(folder, 0770);
    refused("writable by the group", folder);
    chmod(folder, 0755);
    check(in_child(run_first).hits > 0, "readable by all is fine: %s", kl_cache_off_reason());
    chmod(folder, 0700);
    if (geteuid() == 0) {
        check(!chown(folder, 12345, 12345), "a folder of somebody else");
        refused("of somebody else", "belongs to another user");
        check(!chown(folder, 0, 0) && in_child(run_first).hits > 0, "one's own again");
    } else {
        setenv("KILN_CACHE_DIR", "/", 1);
        refused("of somebody else", "belongs to another user");
    }
    setenv("KILN_CACHE_DIR", "none", 1);
    refused("none", "none");
    write_file(in_folder("file"), "x", 1);
    setenv("KILN_CACHE_DIR", path, 1);
    refused("a file", "Not a directory");
    strcat(path, "/below");
    setenv("KILN_CACHE_DIR", path, 1);
    refused("below a file", "Not a directory");
    unlink(in_folder("file"));
    unsetenv("KILN_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    refused("no home", "KILN_CACHE_DIR");
    setenv("HOME", in_folder("home"), 1);
    check(in_child(run_first).compiles > 0 && in_child(run_first).hits > 0, "the home's own");
    check(!access(in_folder("home/.cache/kiln"), F_OK), "is where it should be");
    empty_folder();
    check(!rmdir(in_folder("home/.cache/kiln")) && !rmdir(in_folder("home/.cache")) && !rmdir(in_folder("home")),
          "and is empty");
    setenv("KILN_CACHE_DIR", folder, 1);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    int effort = argc > 1 ? atoi(argv[1]) : 1;
    snprintf(folder, sizeof folder, "/tmp/kiln-disk-XXXXXX");
    if (!check(mkdtemp(folder) != NULL && !rmdir(folder), "a folder"))
        return finish();
    setenv("KILN_CACHE_DIR", folder, 1);
    pool_set_threads(1);
    if (device_find("cpu", &e) < 0) {
        printf("SKIP not-built cpu: %s\n", e.msg);
        skipped++;
        return finish();
    }
    make_graphs();
    test_second_process();
    test_crowd(3 * effort);
    test_keys();
    test_every_byte();
    test_entry_owner();
    test_nothing_kept();
    test_damaged_programs(20 * effort);
    test_strange_entries();
    test_killed(200);
    test_bound();
    test_lowered();
    test_refused();
    empty_folder();
    check(!rmdir(folder), "nothing is left in the folder");
    for (int i = 0; i < GRAPHS; i++) {
        values_free(&want[i]);
        graph_free(graph[i]);
    }
    values_free(&input);
    return finish();
}
