/* ONNX's own models (Debian: libonnx-testdata), or those of the folder that KILN_TEST_ONNX names, as node_models.sh
 * makes them, each changed in one place at a time: a number at the limits of 64 bits, a tensor without elements, an
 * operand, attribute or result left out, inputs of extreme numbers.  Each is loaded or refused, and called or
 * refused, with a reason that is no internal error; with sanitizers, nothing is read or written beyond its end and
 * no size overflows.
 *
 * Arguments: of how many mutants one is tried, which of them is the first (a seed), and, if only some models are to be
 * changed, a part of their names. */
#include "tests/formats/onnx_write.h"
#include "tests/support/api_check.h"
#include <kiln/onnx.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const folders[] = {"node", "simple", "pytorch-operator", "pytorch-converted"};
static kl_device dev;
static char path[] = "/tmp/kiln-mutant-XXXXXX";

/* ---- what is changed ---- */

/* Messages by the fields that are followed: [field] is the message that it holds. */
enum schema {
    NONE, MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, VALUE, TYPE, TENSOR_TYPE, SHAPE, DIMENSION, FUNCTION, SCHEMAS
};
static const enum schema holds[SCHEMAS][32] = {
    [MODEL] = {[7] = GRAPH, [25] = FUNCTION},
    [GRAPH] = {[1] = NODE, [5] = TENSOR, [11] = VALUE, [12] = VALUE},
    [NODE] = {[5] = ATTRIBUTE},
    [ATTRIBUTE] = {[5] = TENSOR, [6] = GRAPH},
    [VALUE] = {[2] = TYPE},
    [TYPE] = {[1] = TENSOR_TYPE},
    [TENSOR_TYPE] = {[2] = SHAPE},
    [SHAPE] = {[1] = DIMENSION},
    [FUNCTION] = {[7] = NODE},
};
static const int64_t number[] = {INT64_MIN, -(INT64_C(1) << 40), -(1 << 24), -1, 0, 1, 2, INT64_C(1) << 32,
                                 INT64_C(1) << 61, INT64_MAX};
static const float real[] = {1e38f, -1e38f, NAN, -0.0f};
enum { NUMBERS = sizeof number / sizeof *number, REALS = sizeof real / sizeof *real,
       LEFT_OUT = NUMBERS + REALS, EMPTIED, WAYS };
_Static_assert(WAYS == 16, "a power of 2: see main");

struct mutant {
    struct pb to;
    uint64_t at, place;              /* fields seen so far; the one that is changed */
    int way;                         /* an index in `number`, then in `real`, LEFT_OUT, EMPTIED */
    bool changed;
};

static const uint8_t *varint(const uint8_t *p, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; p < end && shift < 64; shift += 7) {
        *v |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p++ & 0x80))
            return p;
    }
    return end;
}

/* A tensor of the same name and type without elements. */
static struct pb emptied_tensor(const uint8_t *p, const uint8_t *end)
{
    struct pb t = {0};
    pb_int(&t, 1, 0);
    while (p < end) {
        uint64_t tag, n;
        const uint8_t *from = p;
        p = varint(p, end, &tag);
        p = varint(p, end, &n);
        p += (tag & 7) == 2 ? n : 0;
        if (tag >> 3 == 2 || tag >> 3 == 8)
            pb_bytes(&t, from, (size_t)(p - from));
        if ((tag & 7) != 0 && (tag & 7) != 2)
            break;
    }
    return t;
}

static void copy(struct mutant *m, const uint8_t *p, const uint8_t *end, enum schema s, struct pb *to);

/* A field of bytes: a message, a name, elements. */
static void copy_bytes(struct mutant *m, const uint8_t *p, size_t n, enum schema s, uint32_t field, struct pb *to)
{
    bool here = m->at++ == m->place;
    enum schema inner = field < 32 ? holds[s][field] : NONE;
    struct pb part = {0};
    bool elements = s == TENSOR && field == 9;
    if (here && m->way == LEFT_OUT) {
        m->changed = true;
        return;
    }
    if (here && m->way == EMPTIED && (inner == TENSOR || (s == NODE && field <= 2))) {
        part = inner == TENSOR ? emptied_tensor(p, p + n) : part;
        m->changed = true;
    } else if (here && elements && m->way < LEFT_OUT && n % (m->way < NUMBERS ? 8 : 4) == 0) {
        for (size_t i = 0; i < n; i += m->way < NUMBERS ? 8 : 4)
            pb_bytes(&part, m->way < NUMBERS ? (const void *)&number[m->way] : &real[m->way - NUMBERS],
                     m->way < NUMBERS ? 8 : 4);
        m->changed = true;
    } else if (inner) {
        copy(m, p, p + n, inner, &part);
    } else {
        pb_bytes(&part, p, n);
    }
    pb_message(to, (int)field, &part);
}

static void copy(struct mutant *m, const uint8_t *p, const uint8_t *end, enum schema s, struct pb *to)
{
    while (p < end) {
        uint64_t tag, n;
        p = varint(p, end, &tag);
        if ((tag & 7) == 2) {
            p = varint(p, end, &n);
            if (n > (uint64_t)(end - p))
                return;
            copy_bytes(m, p, (size_t)n, s, (uint32_t)(tag >> 3), to);
            p += n;
        } else if ((tag & 7) == 0) {
            p = varint(p, end, &n);
            if (m->at++ == m->place && m->way < NUMBERS) {
                n = (uint64_t)number[m->way];
                m->changed = true;
            }
            pb_int(to, (int)(tag >> 3), (int64_t)n);
        } else { /* a float, or a fixed number */
            p += (tag & 7) == 1 ? 8 : 4;
            bool here = m->at++ == m->place && (tag & 7) == 5 && m->way >= NUMBERS && m->way < LEFT_OUT;
            m->changed |= here;
            pb_varint(to, tag);
            if (here)
                pb_bytes(to, &real[m->way - NUMBERS], sizeof *real);
            else
                pb_bytes(to, p - ((tag & 7) == 1 ? 8 : 4), (tag & 7) == 1 ? 8 : 4);
        }
    }
}

/* ---- calls ---- */

enum { MAX_VALUES = 16, MAX_ELEMENTS = 4096 };

/* An input of the type that the model says, all of one number; without elements where it says no shape.  kl_none: too
 * many, or no type. */
static kl_tensor input_of(const kl_model *m, uint32_t i, int way)
{
    static int64_t element[MAX_ELEMENTS];
    kl_model_value v;
    int64_t n = 1;
    if (kl_model_input(m, i, &v) != KL_OK || v.dtype == KL_DTYPE_COUNT)
        return kl_none;
    if (v.rank < 0) {
        v.rank = 1;
        v.dims[0] = 0;
    }
    for (int k = 0; k < v.rank; k++) {
        v.dims[k] = v.dims[k] < 0 ? 2 : v.dims[k];
        if (v.dims[k] > MAX_ELEMENTS || (n *= v.dims[k]) > MAX_ELEMENTS)
            return kl_none;
    }
    size_t size = kl_dtype_size(v.dtype);
    int64_t all = v.dtype == KL_BOOL ? way & 1 : number[way % NUMBERS];
    double wide = real[way % REALS];
    const void *one = v.dtype == KL_F32 ? (const void *)&real[way % REALS] : v.dtype == KL_F64 ? (void *)&wide : &all;
    for (int64_t k = 0; k < n; k++)
        memcpy((char *)element + (size_t)k * size, one, size);
    return kl_input(dev, v.dtype, v.rank, v.dims, element);
}

static bool has_reason(void)
{
    return kl_last_error_code() != KL_OK && kl_last_error_code() != KL_ERR_INTERNAL && *kl_last_error();
}

/* Loads the file and calls it; false: a failure without a reason. */
static bool tried(int way)
{
    kl_tensor in[MAX_VALUES], out[MAX_VALUES];
    kl_clear_error();
    kl_model *m = kl_model_open(dev, path);
    if (!m)
        return has_reason();
    uint32_t nin = kl_model_inputs(m), nout = kl_model_outputs(m);
    bool ok = true, calls = nin <= MAX_VALUES && nout <= MAX_VALUES;
    kl_scope_begin();
    for (uint32_t i = 0; calls && i < nin; i++)
        calls = (in[i] = input_of(m, i, way)).id != 0;
    kl_clear_error();
    if (calls && kl_model_call(m, nin, in, nout, out) != KL_OK)
        ok = has_reason();
    kl_scope_end();
    kl_model_close(m);
    return ok;
}

static struct progress { uint64_t tried, failed, mutant; char name[256]; } *progress;

/* A model: the file as it is with extreme inputs, then its mutants. */
static void model(const char *name, const uint8_t *bytes, size_t n, uint64_t every, uint64_t *turn)
{
    snprintf(progress->name, sizeof progress->name, "%s", name);
    struct mutant count = {.place = UINT64_MAX};
    copy(&count, bytes, bytes + n, MODEL, &count.to);
    free(count.to.data);
    for (uint64_t i = 0; i < (count.at + 1) * WAYS; i++) {
        struct mutant m = {.place = i / WAYS, .way = (int)(i % WAYS)};
        if ((*turn)++ % every)
            continue;
        copy(&m, bytes, bytes + n, MODEL, &m.to);
        progress->mutant = i;
        if ((m.changed || m.place == count.at) && onnx_save(path, m.to.data, m.to.n)) {
            progress->tried++;
            bool ok = tried(m.place == count.at ? m.way : 4 + (int)(i % 7));
            progress->failed += !ok;
            if (!ok)
                printf("FAIL %s, mutant %llu: %s\n", name, (unsigned long long)i, kl_last_error());
        }
        free(m.to.data);
    }
}

static void all_models(uint64_t every, uint64_t first, const char *part)
{
    static uint8_t bytes[1 << 16];
    uint64_t turn = every - first % every;
    char file[1200];
    const char *data = getenv("KILN_TEST_ONNX") ? getenv("KILN_TEST_ONNX") : "/usr/share/libonnx-testdata/data";
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(file, sizeof file, "%.800s/%s", data, folders[i]);
        DIR *d = opendir(file);
        for (struct dirent *e; d && (e = readdir(d));) {
            if (*e->d_name == '.' || !strstr(e->d_name, part))
                continue;
            snprintf(file, sizeof file, "%.800s/%s/%.255s/model.onnx", data, folders[i], e->d_name);
            FILE *f = fopen(file, "rb");
            size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
            if (f)
                fclose(f);
            if (n && n < sizeof bytes)
                model(e->d_name, bytes, n, every, &turn);
        }
        if (d)
            closedir(d);
    }
}

int main(int argc, char **argv)
{
    uint64_t every = argc > 1 ? strtoull(argv[1], NULL, 10) : 50, first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    every |= 1; /* coprime to WAYS, so that all ways are tried */
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED || mkstemp(path) < 0)
        return 1;
    fflush(stdout);
    pid_t child = fork(); /* so that a crash says where */
    if (child == 0) {
        setvbuf(stdout, NULL, _IOLBF, 0);
        dev = kl_device_named("ref");
        kl_set_memory_limit(dev, 256 << 20);
        all_models(every, first, argc > 3 ? argv[3] : "");
        exit(0);
    }
    int status = 1;
    bool ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    unlink(path);
    if (!ended)
        printf("FAIL %s, mutant %llu: the process ended with status %x\n", progress->name,
               (unsigned long long)progress->mutant, (unsigned)status);
    if (ended && !progress->tried)
        printf("SKIP no-data onnx: libonnx-testdata is not installed\n");
    printf("%llu passed, %llu failed, %d skipped\n", (unsigned long long)(progress->tried - progress->failed),
           (unsigned long long)(progress->failed + !ended), ended && !progress->tried);
    return !ended || progress->failed;
}
