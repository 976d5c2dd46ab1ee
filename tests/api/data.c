/* IDX files, good and bad: a bad one is always an error that names the file and the fault, and leaves nothing
 * behind. */
#include <kiln/kiln.h>
#include <kiln/train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static int passed, failed;
static char folder[256], path[300];

static bool check(bool ok, const char *what, const char *detail)
{
    if (ok)
        passed++;
    else
        failed++, fprintf(stderr, "data: %s: %s\n", what, detail);
    return ok;
}

static void write_plain(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

/* Compresses n bytes as gzip; the length. */
static size_t gzip(const void *bytes, size_t n, uint8_t *out, size_t room)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)n, .next_out = out, .avail_out = (uInt)room};
    if (deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK ||
        deflate(&z, Z_FINISH) != Z_STREAM_END)
        exit(1);
    deflateEnd(&z);
    return room - z.avail_out;
}

static void write_gzip(const void *bytes, size_t n)
{
    uint8_t out[4096];
    write_plain(out, gzip(bytes, n, out, sizeof out));
}

/* The file at `path` must be refused with KL_ERR_IO, its name and `phrase`. */
static void refused(const char *what, int rank, const int64_t *dim, const char *phrase)
{
    kl_idx idx = {.rank = 7};
    kl_status s = kl_idx_open(path, rank, dim, &idx);
    const char *msg = kl_last_error();
    check(s == KL_ERR_IO && strstr(msg, path) && strstr(msg, phrase), what, msg);
    check(!idx.data && !idx.rank && !idx.count, what, "the result is not empty");
    kl_idx_close(&idx);
}

/* A 3 x 2 x 5 array of 0, 1, 2, ... */
enum { HEADER = 16, COUNT = 30, SIZE = HEADER + COUNT };
static void good_file(uint8_t *b)
{
    static const uint8_t header[HEADER] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5};
    memcpy(b, header, HEADER);
    for (int i = 0; i < COUNT; i++)
        b[HEADER + i] = (uint8_t)i;
}

static bool content_is_good(const kl_idx *idx)
{
    uint8_t b[SIZE];
    good_file(b);
    return idx->rank == 3 && idx->count == COUNT && idx->dim[0] == 3 && idx->dim[1] == 2 && idx->dim[2] == 5 &&
           !memcmp(idx->data, b + HEADER, COUNT);
}

static void accepted(const char *what, int rank, const int64_t *dim)
{
    kl_idx idx;
    kl_status s = kl_idx_open(path, rank, dim, &idx);
    if (check(s == KL_OK, what, s == KL_OK ? "" : kl_last_error()))
        check(content_is_good(&idx), what, "wrong content");
    kl_idx_close(&idx);
    check(!idx.data, what, "kl_idx_close left the data");
}

static void good_files(void)
{
    uint8_t b[SIZE];
    good_file(b);
    write_plain(b, SIZE);
    accepted("plain", 0, NULL);
    write_gzip(b, SIZE);
    accepted("gzip", 0, NULL);
    accepted("gzip, rank given", 3, NULL);
    accepted("gzip, shape given", 3, (int64_t[]){-1, 2, 5});

    static const uint8_t empty[] = {0, 0, 8, 1, 0, 0, 0, 0};
    write_plain(empty, sizeof empty);
    kl_idx idx;
    check(kl_idx_open(path, 1, NULL, &idx) == KL_OK && idx.count == 0 && idx.data, "no elements", "refused");
    kl_idx_close(&idx);
}

/* The good file with byte `at` replaced. */
static void write_changed(int at, uint8_t value)
{
    uint8_t b[SIZE];
    good_file(b);
    b[at] = value;
    write_plain(b, SIZE);
}

static void bad_headers(void)
{
    write_changed(0, 'P');
    refused("wrong magic", 0, NULL, "not an IDX file");
    write_changed(2, 0x0d);
    refused("floats", 0, NULL, "type 0x0d");
    write_changed(3, 0);
    refused("no dimensions", 0, NULL, "0 dimensions");
    write_changed(3, KL_MAX_RANK + 1);
    refused("many dimensions", 0, NULL, "9 dimensions");
    write_changed(4, 0xff);
    refused("huge dimension", 0, NULL, "cannot hold");
    uint8_t b[4 + 4 * 3];
    memset(b, 0xff, sizeof b);
    memcpy(b, (uint8_t[]){0, 0, 8, 3}, 4);
    write_plain(b, sizeof b);
    refused("overflowing dimensions", 0, NULL, "too large");
}

static void bad_lengths(void)
{
    uint8_t b[SIZE + 1] = {0}, z[4096];
    good_file(b);
    remove(path);
    refused("missing", 0, NULL, "cannot open");
    for (int n = 0; n < SIZE; n++) {
        write_plain(b, (size_t)n);
        refused("cut, plain", 0, NULL, "truncated");
        write_gzip(b, (size_t)n);
        refused("cut, then compressed", 0, NULL, "truncated");
    }
    write_plain(b, SIZE + 1);
    refused("a byte more", 0, NULL, "left over after its last element");
    write_gzip(b, SIZE + 1);
    refused("a byte more, compressed", 0, NULL, "left over after its last element");

    size_t n = gzip(b, SIZE, z, sizeof z);
    for (size_t cut = 2; cut < n; cut++) {
        write_plain(z, cut);
        refused("compressed, then cut", 0, NULL, "truncated");
    }
    z[n] = 'x';
    write_plain(z, n + 1);
    refused("a byte behind the compressed stream", 0, NULL, "left over after its compressed stream");
    z[n - 8] ^= 1;
    write_plain(z, n);
    refused("wrong checksum", 0, NULL, "damaged");
}

/* Any one byte of a compressed file changed: refused, or the same content (in bytes gzip does not protect). */
static void damaged_bytes(void)
{
    uint8_t b[SIZE], z[4096];
    good_file(b);
    size_t n = gzip(b, SIZE, z, sizeof z);
    int refusals = 0;
    for (size_t at = 0; at < n; at++) {
        z[at] ^= 0x55;
        write_plain(z, n);
        z[at] ^= 0x55;
        kl_idx idx;
        if (kl_idx_open(path, 0, NULL, &idx) == KL_OK)
            check(content_is_good(&idx), "one byte changed", "accepted with wrong content");
        else
            refusals++;
        kl_idx_close(&idx);
    }
    check(refusals >= (int)n - 10, "one byte changed", "too few refusals");
}

static void other_shapes(void)
{
    uint8_t b[SIZE];
    good_file(b);
    write_gzip(b, SIZE);
    refused("another rank", 1, NULL, "shape [3,2,5], expected 1 dimensions");
    refused("another shape", 3, (int64_t[]){-1, 28, 28}, "shape [3,2,5], expected [?,28,28]");
    snprintf(path, sizeof path, "%s", folder);
    refused("a folder", 0, NULL, "not a regular file");
    snprintf(path, sizeof path, "%s/file", folder);

    kl_idx idx;
    check(kl_idx_open(path, 0, NULL, NULL) == KL_ERR_ARGUMENT, "no result", "accepted");
    check(kl_idx_open(NULL, 0, NULL, &idx) == KL_ERR_ARGUMENT, "no path", "accepted");
    check(kl_idx_open(path, KL_MAX_RANK + 1, NULL, &idx) == KL_ERR_ARGUMENT, "rank too large", "accepted");
    accepted("after all errors", 3, NULL);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kiln-data-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    snprintf(path, sizeof path, "%s/file", folder);
    good_files();
    bad_headers();
    bad_lengths();
    damaged_bytes();
    other_shapes();
    remove(path);
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed ? 1 : 0;
}
