/* What readers of files do with a path that is no file of theirs: each of them refuses a FIFO, a folder, a device, a
 * socket and a name that is not there at once, with a message that says which it is, and nothing is lost. */
#define _GNU_SOURCE
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <kiln/train.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static kl_device dev;

/* ---- readers ---- */

static kl_status no_object(void *object) { return object ? KL_OK : kl_last_error_code(); }
static kl_status read_tensors(const char *path) { return no_object(kl_file_open(path)); }
static kl_status read_model(const char *path) { return no_object(kl_model_open(dev, path)); }
static kl_status read_tensor(const char *path)
{
    return kl_model_read_tensor(dev, path).id ? KL_OK : kl_last_error_code();
}
static kl_status read_tokens(const char *path) { return kl_tokens_open(path, 2, 0, &(kl_tokens){0}); }
static kl_status read_table(const char *path) { return kl_csv_open(path, ',', false, &(kl_csv){0}); }
static kl_status read_idx(const char *path) { return kl_idx_open(path, 1, (int64_t[]){3}, &(kl_idx){0}); }
static kl_status read_vocabulary(const char *path) { return no_object(kl_tokenizer_open(path, NULL)); }
static kl_status read_snapshot(const char *path)
{
    int64_t step = 3;
    kl_snapshot *s = kl_snapshot_new();
    kl_snapshot_i64(s, "step", &step);
    kl_status status = kl_snapshot_load(s, path);
    CHECK(step == 3);
    kl_snapshot_free(s);
    return status;
}

static const struct { const char *name; kl_status (*read)(const char *path); } reader[] = {
    {"kl_file_open", read_tensors}, {"kl_model_open", read_model}, {"kl_model_read_tensor", read_tensor},
    {"kl_tokens_open", read_tokens}, {"kl_csv_open", read_table}, {"kl_idx_open", read_idx},
    {"kl_tokenizer_open", read_vocabulary}, {"kl_snapshot_load", read_snapshot},
};

/* ---- what is refused ---- */

static int open_files(void)
{
    int n = 0;
    for (int f = 0; f < 256; f++)
        n += fcntl(f, F_GETFD) != -1;
    return n;
}

static void refused(const char *path, const char *text)
{
    for (size_t i = 0; i < sizeof reader / sizeof *reader; i++) {
        kl_clear_error();
        int before = open_files();
        kl_status status = reader[i].read(path);
        if (strstr(kl_last_error(), "reads no ONNX models"))
            continue;
        bool ok = status == KL_ERR_IO && strstr(kl_last_error(), text) && strstr(kl_last_error(), path);
        if (!check_at(ok, __LINE__, reader[i].name))
            printf("  of %s: status %d\n", path, (int)status);
        CHECK(open_files() == before);
    }
}

/* A name in the folder. */
static const char *in(const char *folder, const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

int main(void)
{
    char folder[] = "/tmp/kiln-open-XXXXXX";
    dev = kl_device_named("ref");
    if (!CHECK(mkdtemp(folder) != NULL && dev.id != 0))
        return 1;
    alarm(100); /* a reader that waits for a writer waits for ever */
    CHECK(!mkfifo(in(folder, "fifo"), 0600));
    refused(in(folder, "fifo"), "is not a regular file: it is a FIFO");
    CHECK(!symlink("fifo", in(folder, "link")));
    refused(in(folder, "link"), "is not a regular file: it is a FIFO");
    refused(folder, "is not a regular file: it is a folder");
    refused("/dev/null", "is not a regular file: it is a device");
    refused(in(folder, "none"), "cannot open");
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%.100s", in(folder, "socket"));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    if (CHECK(s >= 0 && !bind(s, (struct sockaddr *)&at, sizeof at)))
        refused(in(folder, "socket"), "cannot open");
    close(s);
    unlink(in(folder, "socket"));
    unlink(in(folder, "link"));
    unlink(in(folder, "fifo"));
    rmdir(folder);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
