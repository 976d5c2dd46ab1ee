/* Names in messages: of tensors whose shapes or dtypes do not fit, and of scopes. */
#include "tests/support/api_check.h"
#include <kiln/train.h>
#include <unistd.h>

static kl_device dev;

/* Whether the last error ends with the text behind the line number, if that is not 0. */
static bool says(const char *want)
{
    bool ok = strstr(kl_last_error(), want);
    if (!ok)
        printf("'%s' does not contain '%s'\n", kl_last_error(), want);
    kl_clear_error();
    return ok;
}

static void named_operands(void)
{
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_tensor weight = kl_params_make(p, "encoder.layers.11.attention.query.weight", 2, (int64_t[]){32, 16}, NULL);
    kl_tensor scale = kl_params_make(p, "u1.n1.weight", 1, (int64_t[]){32}, NULL);
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(4, 8)), count = kl_zeros(dev, KL_I32, DIMS(8));
    OK(kl_set_name(count, "count"));
    for (int traced = 0; traced < 2; traced++) {
        static const char *const want[] = {
            "matmul: shapes [4,8] and \"encoder.layers.11.attention.query.weight\" [32,16] do not fit",
            "axis 0 of the weight \"encoder.layers.11.attention.query.weight\" [32,16] has 32",
            "\"u1.n1.weight\" [32]",
            "\"count\" is i32[8]",
        };
        for (int i = 0; i < 4; i++) {
            if (traced)
                OK(kl_trace_begin("fails"));
            kl_tensor y = i == 0   ? kl_matmul(x, weight)
                          : i == 1 ? kl_linear(x, weight, kl_none)
                          : i == 2 ? kl_add(x, scale)
                                   : kl_add(x, count);
            CHECK(!traced || kl_trace_end() != KL_OK);
            CHECK(says(want[i]));
            if (!traced)
                kl_release(y);
        }
    }
    /* a name is said of the call's own operands only, and once */
    kl_release(kl_add(x, scale));
    CHECK(says("\"u1.n1.weight\" [32]"));
    kl_release(kl_add(x, kl_none));
    CHECK(!strstr(kl_last_error(), "u1.n1"));
    kl_tensor other = kl_ones(dev, KL_F32, DIMS(3));
    kl_release(kl_add(x, other));
    CHECK(!strstr(kl_last_error(), "u1.n1") && strstr(kl_last_error(), "[3]"));
    OK(kl_set_name(other, "a shape of [4,8]")); /* names are text as any other */
    kl_release(kl_add(x, other));
    CHECK(says("\"a shape of [4,8]\" [3]"));
    kl_release(other);
    kl_release(x);
    kl_release(count);
    kl_params_free(p);
}

static kl_status leaves_open(void *ctx, const kl_tensor *in, int64_t nin, kl_tensor *out, int64_t nout)
{
    (void)nin;
    (void)nout;
    out[0] = kl_neg(in[0]);
    return *(int *)ctx ? kl_name_end() : kl_name_begin("inner");
}

static void scopes(void)
{
    kl_tensor a = kl_ones(dev, KL_F32, DIMS(4, 8)), b = kl_ones(dev, KL_F32, DIMS(4, 8)), y;
    OK(kl_name_begin("encoder.3"));
    OK(kl_name_begin("attention"));
    kl_release(kl_matmul(a, b));
    CHECK(says(": encoder.3.attention: matmul: shapes"));
    OK(kl_name_end());
    kl_release(kl_matmul(a, b));
    CHECK(says(": encoder.3: matmul: shapes"));
    /* a function of the user's sees the scope, and can neither end it nor leave one open */
    int ends = 1;
    kl_checkpoint(leaves_open, &ends, 1, &a, 1, &y);
    CHECK(says("name_end: the scope was begun outside of this function"));
    kl_release(y);
    ends = 0;
    kl_checkpoint(leaves_open, &ends, 1, &a, 1, &y);
    CHECK(says("kl_name_end"));
    kl_release(y);
    OK(kl_name_end());
    kl_release(kl_matmul(a, b));
    CHECK(strstr(kl_last_error(), ": matmul: shapes") && !strstr(kl_last_error(), "encoder"));
    kl_clear_error();
    CHECK(kl_name_end() == KL_ERR_ARGUMENT && says("name_end: no scope is open"));
    static const char *const bad[] = {"", "two words", "a/b", "\n", "\xc3\xa4", NULL};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(kl_name_begin(bad[i]) == KL_ERR_ARGUMENT && says("is no name of letters"));
    char longest[102];
    memset(longest, 'x', 101);
    longest[101] = 0;
    CHECK(kl_name_begin(longest) == KL_ERR_ARGUMENT && says("a path of more than 100 bytes"));
    OK(kl_name_begin(longest + 1));
    OK(kl_name_end());
    for (int i = 0; i < 32; i++)
        OK(kl_name_begin("n"));
    CHECK(kl_name_begin("n") == KL_ERR_ARGUMENT && says("33rd"));
    for (int i = 0; i < 32; i++)
        OK(kl_name_end());
    kl_release(a);
    kl_release(b);
}

/* One line of C called in two scopes: two sites of nodes. */
static void dumped(void)
{
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(4)), kept = kl_none;
    static const char *const part[] = {"block.0", "block.1"};
    OK(kl_profile_begin());
    for (int again = 0; again < 3; again++) { /* recorded and replayed */
        OK(kl_trace_begin("parts"));
        kl_tensor y = x;
        for (int i = 0; i < 2; i++) {
            OK(kl_name_begin(part[i]));
            y = kl_exp(y);
            OK(kl_name_end());
        }
        kept = kl_keep(y);
        OK(kl_trace_end());
        kl_release(kept);
    }
    kl_profile *profile = kl_profile_end();
    int rows = 0;
    for (int64_t i = 0; profile && i < profile->nline; i++)
        rows += !strcmp(profile->line[i].where, "dumped.block.0") || !strcmp(profile->line[i].where, "dumped.block.1");
    CHECK(rows == 2);
    kl_profile_free(profile);
    char text[4096] = "", path[64];
    snprintf(path, sizeof path, "api_names.%d.kir", (int)getpid());
    OK(kl_dump("parts", "captured", path));
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f)
        fclose(f);
    remove(path);
    if (!CHECK(strstr(text, " dumped.block.0\n") && strstr(text, " dumped.block.1\n")))
        printf("%s\n", text);
    kl_release(x);
}

static void test(kl_device device)
{
    dev = device;
    named_operands();
    scopes();
    dumped();
}

int main(void)
{
    return on_devices(test);
}
