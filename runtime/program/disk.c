/* The disk cache: a folder with one file for each compiled kernel, named by the hash of its key.  The lowered kernels
 * of larger graphs (cache.c) are entries, too: one for each graph.
 *
 * A file has a header, the object code and the whole key.  The header's checksum covers everything after it, so a file
 * that is truncated, damaged or of another key counts as missing.  A writer makes a temporary file and renames it, so
 * readers never see a partial file; a killed writer leaves a temporary file, which disk_prune removes.  There are no
 * locks: the worst effect of a race is that a kernel is compiled twice.
 *
 * Code in the folder is executed.  So the folder must be owned by this user and not be writable by others; any other
 * folder is not used. */
#define _GNU_SOURCE
#include "ir/file_signal.h"
#include "runtime/runtime.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ENTRY_MAX = 64 << 20 };                      /* maximum bytes of a file */
#define ABANDONED_NS (INT64_C(60) * 1000000000)     /* the writer of a temporary file of that age is gone */
static const char suffix[] = ".kernel", temporary[] = "tmp-";

struct disk_entry_head {
    char magic[8];
    struct hash128 sum;                             /* checksum of everything after it */
    uint64_t code_bytes, key_bytes;
    char name[64];                                  /* the kernel's name, for listings */
};
_Static_assert(sizeof(struct disk_entry_head) == 104, "no padding, and the code behind it is aligned to 8");
static const char magic[8] = {'K', 'I', 'L', 'N', 'K', 'R', 'N', '1'};

/* ---- keys ---- */

/* The fields of a kernel that kernel_hash includes besides its instructions and buffers. */
struct shape_of_kernel { struct sched_record sched; int64_t extent; uint32_t ninst, nbuf; };
_Static_assert(sizeof(struct shape_of_kernel) == sizeof(struct sched_record) + 16,
               "no padding: it is compared as bytes");

bool disk_key_make(struct disk_key *key, const struct kernel *k, const struct backend *b, const struct caps *caps)
{
    *key = (struct disk_key){0};
    char target[sizeof *caps + 512];
    int text = snprintf(target, sizeof target, "kernel abi %u\n%s\n%s\n%s %s\nvector %u%s\nnumerics exact\n",
                        KERNEL_ABI, b->version(), *caps->arch ? caps->arch : HOST_ARCH, caps->name, caps->features,
                        caps->vector_bytes, caps->bf16_tiles ? " tiles" : "");
    struct shape_of_kernel s = {k->sched, k->extent, k->ninst, k->nbuf};
    size_t head = (size_t)text + 1, inst = k->ninst * sizeof *k->inst, buf = k->nbuf * sizeof *k->buf;
    if (head > sizeof target || !(key->bytes = mem_alloc(head + sizeof s + inst + buf))) return false;
    memcpy(key->bytes, target, head);
    memcpy(key->bytes + head, &s, sizeof s);
    memcpy(key->bytes + head + sizeof s, k->inst, inst);
    if (buf) memcpy(key->bytes + head + sizeof s + inst, k->buf, buf);
    key->size = head + sizeof s + inst + buf;
    key->hash = bytes_hash(key->bytes, key->size);
    memcpy(key->name, k->name, sizeof key->name);
    return true;
}

bool disk_key_text(struct disk_key *key, const char *text, const char *name)
{
    *key = (struct disk_key){.size = strlen(text) + 1};
    if (!(key->bytes = mem_alloc(key->size))) return false;
    memcpy(key->bytes, text, key->size);
    key->hash = bytes_hash(key->bytes, key->size);
    snprintf(key->name, sizeof key->name, "%s", name);
    return true;
}

void disk_key_free(struct disk_key *key)
{
    mem_free(key->bytes);
    *key = (struct disk_key){0};
}

static void file_of(struct hash128 hash, char file[48])
{
    snprintf(file, 48, "%016llx%016llx%s", (unsigned long long)hash.hi, (unsigned long long)hash.lo, suffix);
}

/* ---- the folder ---- */

static bool disk_fits(int n, size_t size, struct err *e)
{
    return (n >= 0 && (size_t)n < size) || err_set(e, KL_ERR_IO, "the path of the cache folder is too long");
}

static bool folder_path(char *path, size_t size, struct err *e)
{
    const char *dir = getenv("KILN_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (option_cache_bytes() == 0) return err_set(e, KL_ERR_IO, "option cache_bytes is 0: no kernels are kept on disk");
    if (dir && !strcmp(dir, "none")) return err_set(e, KL_ERR_IO,
                                                    "KILN_CACHE_DIR is none: no kernels are kept on disk");
    if (dir && *dir) return disk_fits(snprintf(path, size, "%s", dir), size, e);
    if (xdg && *xdg == '/') return disk_fits(snprintf(path, size, "%s/kiln", xdg), size, e);
    if (home && *home == '/') return disk_fits(snprintf(path, size, "%s/.cache/kiln", home), size, e);
    return err_set(e, KL_ERR_IO, "there is no folder for a cache: KILN_CACHE_DIR and HOME are not set");
}

/* Creates the missing folders of a path, accessible by this user only. */
static void make_folders(const char *path)
{
    char part[PATH_MAX];
    for (const char *slash = path; slash; ) {
        slash = strchr(slash + 1, '/');
        size_t n = slash ? (size_t)(slash - path) : strlen(path);
        if (n >= sizeof part) return;
        memcpy(part, path, n);
        part[n] = 0;
        mkdir(part, 0700);
    }
}

static bool safe_folder(int fd, const char *path, struct err *e)
{
    struct stat s;
    if (fstat(fd, &s)) return err_set(e, KL_ERR_IO, "cache folder %s: %s", path, strerror(errno));
    if (s.st_uid != geteuid())
        return err_set(e, KL_ERR_IO,
                       "cache folder %s belongs to another user (%u, not %u) and is not used: set KILN_CACHE_DIR "
                       "to a folder of your own", path, (unsigned)s.st_uid, (unsigned)geteuid());
    if (s.st_mode & (S_IWGRP | S_IWOTH))
        return err_set(e, KL_ERR_IO,
                       "cache folder %s can be written by others (mode %03o) and is not used: chmod 700 it",
                       path, (unsigned)(s.st_mode & 0777));
    return true;
}

/* Opens the folder and creates it if necessary; -1: *e.  It is checked each time, because it may change at any time. */
static int open_folder(char *path, size_t size, struct err *e)
{
    if (!folder_path(path, size, e)) return -1;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        make_folders(path);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (fd < 0) {
        err_set(e, KL_ERR_IO, "cache folder %s: %s", path, strerror(errno));
    } else if (!safe_folder(fd, path, e)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int open_cache(void)
{
    char path[PATH_MAX];
    struct err ignored = {0};
    return open_folder(path, sizeof path, &ignored);
}

bool disk_folder(char *path, size_t size, struct err *e)
{
    int fd = open_folder(path, size, e);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* ---- entries ---- */

static bool read_all(int fd, char *to, size_t size)
{
    for (ssize_t n; size; to += n, size -= (size_t)n) {
        n = read(fd, to, size);
        if (n < 0 && errno == EINTR) n = 0;
        else if (n <= 0) return false;
    }
    return true;
}

static bool write_all(int fd, const char *from, size_t size)
{
    struct file_signal saved = file_signal_block();
    bool ok = true;
    for (ssize_t n; size && ok; from += n, size -= (size_t)n) {
        n = write(fd, from, size);
        ok = n >= 0 || errno == EINTR;
        if (n < 0) n = 0;
    }
    file_signal_restore(&saved);
    return ok;
}

/* Reads a whole file and checks it against its header; NULL: *e. mem_free it. */
static struct disk_entry_head *read_entry(int fd, struct err *e)
{
    struct stat s;
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_size < (off_t)sizeof(struct disk_entry_head) ||
        s.st_size > ENTRY_MAX) {
        err_set(e, KL_ERR_IO, "no entry can have %lld bytes", (long long)s.st_size);
        return NULL;
    }
    /* code is executed: the same checks as for the folder */
    if (s.st_uid != geteuid() || (s.st_mode & (S_IWGRP | S_IWOTH))) {
        err_set(e, KL_ERR_IO, "%s", s.st_uid != geteuid() ? "it belongs to another user" : "others may write to it");
        return NULL;
    }
    size_t size = (size_t)s.st_size, rest = size - sizeof(struct disk_entry_head);
    struct disk_entry_head *h = mem_alloc(size);
    if (!h) {
        err_set(e, KL_ERR_MEMORY, "no memory to read an entry");
        return NULL;
    }
    const size_t summed = offsetof(struct disk_entry_head, code_bytes);
    if (!read_all(fd, (char *)h, size)) err_set(e, KL_ERR_IO, "it cannot be read");
    else if (memcmp(h->magic, magic, sizeof magic)) err_set(e, KL_ERR_IO, "it is no entry of this version");
    else if (h->code_bytes > rest || h->key_bytes != rest - h->code_bytes) err_set(e, KL_ERR_IO, "its length is wrong");
    else {
        struct hash128 sum = bytes_hash((char *)h + summed, size - summed);
        if (sum.lo == h->sum.lo && sum.hi == h->sum.hi) return h;
        err_set(e, KL_ERR_IO, "its bytes do not give its sum");
    }
    mem_free(h);
    return NULL;
}

static int open_entry(int dir, const char *file)
{
    return openat(dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

bool disk_load(const struct disk_key *key, struct disk_code *out)
{
    char file[48];
    struct err why = {0};
    int dir = open_cache();
    if (dir < 0) return false;
    file_of(key->hash, file);
    int fd = open_entry(dir, file);
    close(dir);
    if (fd < 0) return false;
    struct disk_entry_head *h = read_entry(fd, &why);
    if (!h) log_put(KL_LOG_WARN, "the cache's entry %s is not used: %s", file, why.msg);
    bool same = h && h->key_bytes == key->size && !memcmp((char *)(h + 1) + h->code_bytes, key->bytes, key->size);
    if (same) futimens(fd, NULL); /* marks it as used now */
    close(fd);
    if (same) *out = (struct disk_code){{h + 1, h->code_bytes}, h};
    else mem_free(h);
    return same;
}

static void temporary_name(char temp[48])
{
    static atomic_uint number;
    snprintf(temp, 48, "%s%ld-%u", temporary, (long)getpid(), atomic_fetch_add(&number, 1));
}

bool disk_accepts(struct err *e)
{
    static const char page[4096];
    char path[PATH_MAX], temp[48];
    int dir = open_folder(path, sizeof path, e);
    if (dir < 0) return false;
    temporary_name(temp);
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), why = fd < 0 ? errno : 0;
    if (fd >= 0) {
        errno = ENOSPC; /* for a short write without an error */
        bool ok = write_all(fd, page, sizeof page);
        why = ok ? 0 : errno;
        if (close(fd) && !why) why = errno;
        unlinkat(dir, temp, 0);
    }
    close(dir);
    return !why || err_set(e, KL_ERR_IO, "cache folder %s: nothing can be written there: %s", path, strerror(why));
}

static bool write_entry(int dir, const char *name, const char *bytes, size_t size)
{
    char temp[48];
    temporary_name(temp);
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    bool ok = write_all(fd, bytes, size);
    ok &= !close(fd);
    ok = ok && !renameat(dir, temp, dir, name);
    if (!ok) unlinkat(dir, temp, 0);
    return ok;
}

/* Scanning the folder costs more than one write.  So on average one write in every `step` bytes scans it, independent
 * of which process wrote them; the hash of the key decides. */
static void prune_sometimes(const struct disk_key *key, size_t written)
{
    int64_t max = option_cache_bytes(), step = max / 16 + 1;
    struct err ignored = {0};
    struct disk_entries gone;
    if (key->hash.lo % (uint64_t)step < written) disk_prune(max - step, &gone, &ignored);
}

void disk_store(const struct disk_key *key, const struct code *code)
{
    size_t size = sizeof(struct disk_entry_head) + code->size + key->size;
    if (size > ENTRY_MAX || (int64_t)size > option_cache_bytes()) return;
    int dir = open_cache();
    struct disk_entry_head *h = dir < 0 ? NULL : mem_alloc(size);
    if (h) {
        const size_t summed = offsetof(struct disk_entry_head, code_bytes);
        memcpy(h->magic, magic, sizeof magic);
        h->code_bytes = code->size;
        h->key_bytes = key->size;
        memcpy(h->name, key->name, sizeof h->name);
        memcpy(h + 1, code->bytes, code->size);
        memcpy((char *)(h + 1) + code->size, key->bytes, key->size);
        h->sum = bytes_hash((char *)h + summed, size - summed);
        char file[48];
        file_of(key->hash, file);
        if (write_entry(dir, file, (char *)h, size)) prune_sometimes(key, size);
    }
    mem_free(h);
    if (dir >= 0) close(dir);
}

/* ---- the folder as a whole ---- */

/* Files with other names do not belong to the cache and are left alone. */
static bool is_entry(const char *file)
{
    return strspn(file, "0123456789abcdef") == 32 && !strcmp(file + 32, suffix);
}

static bool is_temporary(const char *file)
{
    size_t n = sizeof temporary - 1;
    return !strncmp(file, temporary, n) && strspn(file + n, "0123456789-") == strlen(file + n) && strlen(file) < 48;
}

static int by_use(const void *a, const void *b)
{
    const struct disk_entry *x = a, *y = b;
    return x->used != y->used ? (x->used < y->used ? -1 : 1) : strcmp(x->file, y->file);
}

static bool disk_list_entries(DIR *d, struct disk_entries *out, struct err *e)
{
    for (const struct dirent *f; (f = readdir(d));) {
        struct stat s;
        bool entry = is_entry(f->d_name);
        if ((!entry && !is_temporary(f->d_name)) || fstatat(dirfd(d), f->d_name, &s, AT_SYMLINK_NOFOLLOW)) continue;
        if (!mem_reserve(&out->v, &out->cap, out->n + 1, sizeof *out->v))
            return err_set(e, KL_ERR_MEMORY, "no memory to list the cache");
        struct disk_entry *x = &out->v[out->n++];
        memcpy(x->file, f->d_name, strlen(f->d_name) + 1);
        x->bytes = s.st_size;
        x->used = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
        x->temporary = !entry;
        out->bytes += x->bytes;
    }
    if (out->n) qsort(out->v, out->n, sizeof *out->v, by_use);
    return true;
}

static DIR *open_list(struct disk_entries *out, struct err *e)
{
    char path[PATH_MAX];
    *out = (struct disk_entries){0};
    int fd = open_folder(path, sizeof path, e);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d) return d;
    if (fd >= 0) close(fd);
    err_set(e, KL_ERR_IO, "cache folder %s: %s", path, strerror(errno));
    return NULL;
}

bool disk_list(struct disk_entries *out, struct err *e)
{
    DIR *d = open_list(out, e);
    bool ok = d && disk_list_entries(d, out, e);
    if (d) closedir(d);
    return ok;
}

bool disk_verify(struct disk_entry *entry, struct err *e)
{
    int dir = open_cache(), fd = dir < 0 ? -1 : open_entry(dir, entry->file);
    if (dir >= 0) close(dir);
    if (fd < 0) return err_set(e, KL_ERR_IO, "it cannot be opened");
    struct disk_entry_head *h = read_entry(fd, e);
    close(fd);
    if (!h) return false;
    char file[48];
    file_of(bytes_hash((char *)(h + 1) + h->code_bytes, h->key_bytes), file);
    memcpy(entry->name, h->name, sizeof entry->name);
    entry->name[sizeof entry->name - 1] = 0;
    mem_free(h);
    return !strcmp(file, entry->file) || err_set(e, KL_ERR_IO, "it has the name of another");
}

bool disk_prune(int64_t max, struct disk_entries *gone, struct err *e)
{
    struct disk_entries all;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t abandoned = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - ABANDONED_NS;
    *gone = (struct disk_entries){0};
    DIR *d = open_list(&all, e);
    bool ok = d && disk_list_entries(d, &all, e);
    for (uint32_t i = 0; ok && i < all.n; i++) {
        const struct disk_entry *x = &all.v[i];
        bool remove = max == 0 || (x->temporary ? x->used < abandoned : all.bytes > max);
        if (!remove || (unlinkat(dirfd(d), x->file, 0) && errno != ENOENT)) continue;
        all.bytes -= x->bytes;
        gone->bytes += x->bytes;
        gone->n++;
    }
    mem_free(all.v);
    if (d) closedir(d);
    return ok;
}
