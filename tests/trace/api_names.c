/* Names in messages: of tensors whose shapes or dtypes do not fit, and of scopes. */
#include "tests/support/api_check.h"
#include <kiln/extend.h>
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

/* A module's scope is its parameters' path; what an open scope has of it is not said again. */
static void modules(void)
{
    kl_params *p = kl_params_new(dev, KL_F32, 1);
    kl_nn_block block;
    kl_nn_block_options o = {.attention = {.width = 8, .heads = 2, .causal = true}};
    kl_nn_linear fc, odd, bare = {0};
    kl_nn_recurrent lstm;
    OK(kl_nn_block_init(&block, p, "decoder.h.3", &o));
    OK(kl_nn_linear_init(&fc, p, "head", 8, 4, true));
    OK(kl_nn_linear_init(&odd, p, "head/odd", 8, 4, true));
    OK(kl_nn_lstm_init(&lstm, p, "rnn.1", 8, 4));
    bare.weight = kl_ones(dev, KL_F32, DIMS(8, 4));
    kl_tensor x = kl_ones(dev, KL_F32, DIMS(1, 3, 8)), bad = kl_ones(dev, KL_F32, DIMS(1, 3, 7));
    static const struct { const char *scope, *want; } in[] = {
        {NULL, ": head: linear: "}, {"head", ": head: linear: "}, {"net", ": net.head: linear: "},
        {"he", ": he.head: linear: "}};
    for (int traced = 0; traced < 2; traced++)
        for (int i = 0; i < 4; i++) {
            OK(traced ? kl_trace_begin("wrong") : KL_OK);
            OK(in[i].scope ? kl_name_begin(in[i].scope) : KL_OK);
            kl_tensor y = kl_nn_linear_forward(&fc, bad);
            OK(in[i].scope ? kl_name_end() : KL_OK);
            CHECK(!traced || kl_trace_end() == KL_ERR_SHAPE);
            CHECK(says(in[i].want));
            if (!traced)
                kl_release(y);
        }
    kl_release(kl_nn_linear_forward(&odd, bad)); /* no name of a scope: nothing is said */
    CHECK(says(": linear: "));
    kl_release(kl_nn_linear_forward(&bare, bad));
    CHECK(says(": linear: "));
    kl_release(kl_nn_recurrent_forward(&lstm, bad, NULL, NULL));
    CHECK(says(": rnn.1: nn_recurrent: "));
    kl_nn_block broken = block; /* the module inside that fails, within those around it */
    broken.up.weight = fc.weight;
    OK(kl_set_name(fc.weight, "decoder.h.3.mlp.up.weight"));
    OK(kl_name_begin("gpt"));
    kl_release(kl_nn_block_forward(&broken, x, kl_none, NULL, 0, kl_none));
    CHECK(says(": gpt.decoder.h.3.mlp.down: nn_block: "));
    kl_tensor good = kl_nn_block_forward(&block, x, kl_none, NULL, 0, kl_none); /* and the scopes are closed */
    OK(kl_check(good));
    kl_release(good);
    kl_release(kl_nn_attention_forward(&block.attention, bad, kl_none, NULL, 0));
    CHECK(says(": gpt.decoder.h.3.attention: nn_attention: "));
    OK(kl_name_end());
    CHECK(kl_module_begin(fc.weight, -1) == KL_ERR_ARGUMENT && says("module_begin: -1 parts"));
    CHECK(kl_module_end() == KL_ERR_ARGUMENT && says("module_end: no scope is open"));
    for (int i = 0; i < 32; i++)
        OK(kl_module_begin(fc.weight, 1));
    CHECK(kl_module_begin(fc.weight, 1) == KL_ERR_ARGUMENT && says("33rd"));
    CHECK(kl_check(kl_nn_linear_forward(&odd, x)) == KL_ERR_ARGUMENT);
    kl_clear_error();
    for (int i = 0; i < 32; i++)
        OK(kl_module_end());
    kl_release(x), kl_release(bad), kl_release(bare.weight);
    kl_params_free(p);
}

static void test(kl_device device)
{
    dev = device;
    named_operands();
    scopes();
    dumped();
    modules();
}

int main(void)
{
    return on_devices(test);
}
