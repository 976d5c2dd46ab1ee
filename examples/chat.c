/* Chats with a language model on the terminal: a GGUF file, or a folder of safetensors with tokenizer.json.
 *
 *     chat model.gguf
 *     chat model.gguf --session talk.safetensors        goes on where it was left
 *     chat model.gguf --conversations 3                 three at once: line by line to each in turn
 *
 * Answers appear as they are made; Ctrl-C ends an answer, and at the prompt the program.  Read record_step, prefill and
 * answer first; the rest is text, files and options. */
#define _POSIX_C_SOURCE 200809L
#include "flags.h"
#include "llm/llm.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 64, MAX_CONVERSATIONS = 16, LINE = 1 << 16 }; /* PIECE: tokens of a prompt that run at once */

struct options {
    double length, answer, bytes, temperature, top_k, top_p, seed, conversations;
    const char *session, *system, *family, *adapters, *device;
};

/* A conversation: the tokens so far, and the keys and values of those from 0 to at - 1. */
struct talk {
    struct llm_cache cache;
    kl_step *prompt, *token;
    int32_t *ids;
    int64_t count, at;
    int64_t answer_from;   /* the first token of the answer that is being made */
    int64_t printed;       /* bytes of it that the terminal has */
    bool open;             /* an answer is being made */
};

struct chat {
    struct options opt;
    struct llm model;
    kl_tokenizer *tokenizer;
    kl_chat_family family;
    kl_params *adapters;
    struct talk talk[MAX_CONVERSATIONS];
    int talks;
};

static kl_cancel_token *stop; /* Ctrl-C cancels what Kiln is computing; it is then as before, and can go on */
static void interrupt(int number) { (void)number, kl_cancel(stop); }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the model's steps ---- */

/* A step that stores the keys and values of n tokens, ids i32 [1, n], from position `at`, i32 [1], on, and gives the
 * token behind number `last`, i32 [1], of them. */
static kl_step *record_step(const struct chat *c, struct llm_cache *cache, int64_t n)
{
    int32_t zeros[PIECE] = {0};
    const struct llm *m = &c->model;
    kl_trace_begin(n == 1 ? "token" : "prompt");
    kl_tensor ids = kl_input(m->device, KL_I32, 2, (int64_t[]){1, n}, zeros);
    kl_tensor at = kl_input(m->device, KL_I32, 1, (int64_t[]){1}, zeros);
    kl_tensor last = kl_input(m->device, KL_I32, 1, (int64_t[]){1}, zeros);
    kl_tensor hidden = llm_hidden(m, ids, at, cache);
    kl_tensor logits = kl_squeeze(llm_logits(m, kl_take(hidden, 1, last)), 0);
    kl_tensor seed = kl_random_fold_in(kl_scalar(m->device, KL_U64, c->opt.seed), kl_sum_all(kl_add(at, last)));
    kl_sample_options sample = {.temperature = c->opt.temperature, .top_k = (int64_t)c->opt.top_k,
                                .top_p = c->opt.top_p};
    kl_keep(kl_sample(logits, seed, &sample));
    return kl_trace_end_step(3, (kl_tensor[]){ids, at, last});
}

/* Runs n tokens from number t->at on, of which a step takes `room`.  Returns the token behind them, or -1. */
static int32_t run_step(const struct chat *c, struct talk *t, kl_step *step, int32_t n, int64_t room)
{
    int32_t padded[PIECE] = {0}, at = (int32_t)t->at, last = n - 1;
    memcpy(padded, t->ids + t->at, (size_t)n * sizeof *padded);
    kl_device device = c->model.device;
    kl_tensor next, in[3] = {kl_input(device, KL_I32, 2, (int64_t[]){1, room}, padded),
                             kl_input(device, KL_I32, 1, (int64_t[]){1}, &at),
                             kl_input(device, KL_I32, 1, (int64_t[]){1}, &last)};
    int32_t token = -1;
    if (kl_step_run(step, 3, in, 0, NULL, 1, &next) == KL_OK) {
        token = (int32_t)kl_item_i64(next);
        kl_release(next);
        t->at += n;
    }
    for (int i = 0; i < 3; i++)
        kl_release(in[i]);
    return token;
}

/* Runs the tokens that the cache does not have yet, and appends the next one, unless it is cancelled. */
static bool run_tokens(const struct chat *c, struct talk *t)
{
    int32_t token = -1;
    while (t->at < t->count) {
        int64_t left = t->count - t->at, n = left < PIECE ? left : PIECE;
        token = left == 1 ? run_step(c, t, t->token, 1, 1) : run_step(c, t, t->prompt, (int32_t)n, PIECE);
        if (token < 0)
            return kl_last_error_code() == KL_ERR_CANCELLED || llm_fail("chat", kl_last_error());
    }
    t->ids[t->count++] = token;
    return true;
}

/* ---- text ---- */

static bool is_end(const struct chat *c, int32_t token)
{
    return token == kl_chat_end_token(c->tokenizer, c->family) ||
           token == kl_tokenizer_special(c->tokenizer, KL_TOKEN_EOS);
}

/* Appends a message of the user, up to where its answer begins.  Behind an answer this is what the family writes behind
 * one, here behind "y".  false: it is not appended, the reason is on stderr. */
static bool append_message(const struct chat *c, struct talk *t, const char *message)
{
    static char text[2 * LINE];
    const kl_chat_message begin[] = {{"system", c->opt.system}, {"user", message}};
    const kl_chat_message later[] = {{"user", "x"}, {"assistant", "y"}, {"user", message}};
    bool first = !t->count, system = c->opt.system;
    int64_t bytes, n = 0, room = (int64_t)c->opt.length - t->count;
    kl_encode_options options = {.no_begin_end = true};
    kl_status s = first ? kl_chat_format(c->tokenizer, c->family, system ? 2 : 1, begin + !system, true, text,
                                         sizeof text, &bytes)
                        : kl_chat_format(c->tokenizer, c->family, 3, later, true, text, sizeof text, &bytes);
    if (s != KL_OK || bytes >= (int64_t)sizeof text)
        return llm_fail("chat", s == KL_OK ? "the message is too long" : kl_last_error());
    const char *from = text;
    if (!first) {
        char until[256]; /* up to the answer */
        kl_chat_format(c->tokenizer, c->family, 1, later, true, until, sizeof until, &n);
        from = strchr(text + n, 'y') + 1;
    }
    if (kl_tokenizer_encode_with(c->tokenizer, from, bytes - (from - text), &options, t->ids + t->count, room, &n))
        return llm_fail("chat", kl_last_error());
    if (n >= room)
        return llm_fail("chat", "the conversation is as long as it can be; --length N makes room");
    if (!first && n && t->ids[t->count] == t->ids[t->count - 1] && is_end(c, t->ids[t->count])) /* the answer has it */
        memmove(t->ids + t->count, t->ids + t->count + 1, (size_t)--n * sizeof *t->ids);
    t->count += n;
    t->answer_from = t->count;
    t->printed = 0;
    return t->open = true;
}

/* Prints what the answer has beyond what is printed; a character whose bytes are not all there waits. */
static void print_answer(const struct chat *c, struct talk *t, bool whole)
{
    char text[LINE];
    int64_t n = t->count - t->answer_from, bytes = 0;
    kl_decode_options options = {.skip_special = true};
    if (kl_tokenizer_decode_with(c->tokenizer, n, t->ids + t->answer_from, &options, text, LINE, &bytes) != KL_OK)
        return;
    bytes = bytes < LINE ? bytes : LINE;
    int64_t end = bytes, back = 0; /* up to three bytes may begin a character that is not complete */
    while (!whole && back < 3 && end > t->printed && (text[end - 1] & 0xC0) == 0x80)
        end--, back++;
    if (!whole && end > t->printed && (text[end - 1] & 0x80)) {
        unsigned char first = (unsigned char)text[end - 1];
        int64_t needs = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        end = back >= needs ? bytes : end - 1;
    }
    fwrite(text + t->printed, 1, (size_t)(end - t->printed), stdout);
    fflush(stdout);
    t->printed = end;
}

/* Makes the answers of all open conversations, a token of each in turn.  One alone is printed as it comes. */
static bool answer(struct chat *c)
{
    int64_t tokens = 0, open = 0, most = (int64_t)c->opt.answer;
    double start = now(), first = 0;
    for (int i = 0; i < c->talks; i++)
        open += c->talk[i].open;
    while (open && !kl_is_cancelled(stop))
        for (int i = 0; i < c->talks && !kl_is_cancelled(stop); i++) {
            struct talk *t = &c->talk[i];
            if (!t->open)
                continue;
            if (!run_tokens(c, t))
                return false;
            if (kl_is_cancelled(stop))
                break;
            first = tokens++ ? first : now();
            bool end = is_end(c, t->ids[t->count - 1]) || t->count - t->answer_from >= most ||
                       t->count >= t->cache.length - PIECE;
            if (c->talks == 1 || end) {
                if (c->talks > 1)
                    printf("[%d] ", i + 1);
                print_answer(c, t, end);
            }
            if (end) {
                putchar('\n');
                t->open = false, open--;
            }
        }
    for (int i = 0; i < c->talks; i++)
        if (c->talk[i].open)
            c->talk[i].open = false, putchar('\n');
    kl_cancel_token_reset(stop);
    if (tokens > 1)
        fprintf(stderr, "(first token after %.2f s, then %.1f tokens/s)\n", first - start,
                (double)(tokens - 1) / (now() - first));
    return true;
}

/* ---- sessions: a conversation in a file, its tokens and what the cache has of them ---- */

static bool session_write(const struct chat *c, const struct talk *t, const char *path)
{
    int64_t n = 2 * t->cache.layers + 1;
    kl_file_item *items = calloc((size_t)n, sizeof *items);
    char (*names)[32] = calloc((size_t)n, sizeof *names);
    bool ok = items && names;
    for (int64_t i = 0; ok && i < n - 1; i++) {
        snprintf(names[i], sizeof names[i], "%s.%" PRId64, i < t->cache.layers ? "k" : "v", i % t->cache.layers);
        items[i] = (kl_file_item){.name = names[i], .tensor = kl_narrow(t->cache.k[i], 2, 0, t->at)};
    }
    if (ok) {
        items[n - 1] = (kl_file_item){.name = "tokens", .dtype = KL_I32, .rank = 1, .dims = &t->count, .data = t->ids};
        ok = kl_file_write(path, KL_FILE_SAFETENSORS, n, items, 0, NULL) == KL_OK;
    }
    for (int64_t i = 0; items && i < n - 1; i++)
        kl_release(items[i].tensor);
    free(items), free(names);
    (void)c;
    return ok || llm_fail(path, kl_last_error());
}

/* Puts the file's keys and values into the cache. */
static bool session_read(const struct chat *c, struct talk *t, const char *path)
{
    kl_file *f = kl_file_open(path);
    kl_file_entry e;
    int64_t i = f ? kl_file_find(f, "tokens") : -1, room = (int64_t)c->opt.length;
    bool ok = i >= 0 && kl_file_get(f, i, &e) == KL_OK && e.dtype == KL_I32 && e.rank == 1 && e.dims[0] < room;
    if (ok) {
        memcpy(t->ids, kl_file_data(f, "tokens"), (size_t)e.dims[0] * sizeof *t->ids);
        t->count = e.dims[0];
    }
    for (int64_t k = 0; ok && k < 2 * t->cache.layers; k++) {
        char name[32];
        snprintf(name, sizeof name, "%s.%" PRId64, k < t->cache.layers ? "k" : "v", k % t->cache.layers);
        kl_tensor part = kl_file_tensor(f, c->model.device, name);
        int64_t dims[KL_MAX_RANK] = {0};
        ok = kl_check(part) == KL_OK && kl_shape(part, dims) == 4 && dims[2] <= t->count;
        t->at = dims[2];
        kl_trace_begin("session");
        kl_assign(t->cache.k[k], kl_dynamic_update(t->cache.k[k], part, (kl_tensor[4]){{0}}));
        ok = kl_trace_end() == KL_OK && ok;
        kl_release(part);
    }
    kl_file_close(f);
    return ok || llm_fail(path, *kl_last_error() ? kl_last_error() : "not a session of this model, or a longer one");
}

/* ---- the program ---- */

static bool talk_init(struct chat *c, struct talk *t)
{
    int64_t length = (int64_t)c->opt.length;
    t->ids = calloc((size_t)length + PIECE, sizeof *t->ids);
    if (!t->ids || !llm_cache_init(&t->cache, &c->model, 1, length + PIECE))
        return false;
    t->prompt = record_step(c, &t->cache, PIECE);
    t->token = t->prompt ? record_step(c, &t->cache, 1) : NULL;
    return t->token || llm_fail("chat", kl_last_error());
}

static bool chat_open(struct chat *c, const char *path)
{
    char file[4096];
    kl_device device = c->opt.device ? kl_device_named(c->opt.device) : kl_device_default();
    if (!device.id)
        return llm_fail("no device", kl_last_error());
    if (!llm_open(&c->model, device, path))
        return false;
    snprintf(file, sizeof file, "%s%s", path, c->model.config ? "/tokenizer.json" : "");
    c->tokenizer = kl_tokenizer_open(file, NULL);
    if (!c->tokenizer)
        return llm_fail("no tokenizer", kl_last_error());
    while (c->opt.family && strcmp(c->opt.family, kl_chat_family_name(c->family)) != 0)
        if (++c->family == KL_CHAT_FAMILIES)
            return llm_fail(c->opt.family, "not one of llama3, chatml, mistral, gemma, llama2");
    if (c->opt.adapters && !(c->adapters = llm_read_adapters(&c->model, c->opt.adapters)))
        return false;
    c->model.bytes = c->opt.bytes > 0;
    c->talks = (int)c->opt.conversations;
    for (int i = 0; i < c->talks; i++)
        if (!talk_init(c, &c->talk[i]))
            return false;
    const char *session = c->opt.session;
    return !session || access(session, F_OK) != 0 || session_read(c, &c->talk[0], session);
}

static void chat_close(struct chat *c)
{
    for (int i = 0; i < c->talks; i++) {
        struct talk *t = &c->talk[i];
        kl_step_free(t->prompt), kl_step_free(t->token);
        llm_cache_deinit(&t->cache);
        free(t->ids);
    }
    kl_tokenizer_close(c->tokenizer);
    llm_close(&c->model);
    kl_params_free(c->adapters);
}

/* Reads a line for each conversation and answers, until the end of the input. */
static bool chat_run(struct chat *c)
{
    char line[LINE];
    bool terminal = isatty(STDIN_FILENO);
    for (;;) {
        int lines = 0;
        while (lines < c->talks) {
            if (terminal && c->talks > 1)
                printf("%d> ", lines + 1);
            else if (terminal)
                printf("> ");
            fflush(stdout);
            if (!fgets(line, sizeof line, stdin))
                break;
            line[strcspn(line, "\n")] = 0;
            if (!append_message(c, &c->talk[lines++], line) && !terminal)
                return false;
        }
        if (!lines)
            return true;
        if (!answer(c))
            return false;
    }
}

int main(int argc, char **argv)
{
    static struct chat c = {.opt = {.length = 4096, .answer = 512, .temperature = 0.7, .top_k = 40, .top_p = 0.95,
                                   .seed = 1, .conversations = 1}};
    struct options *o = &c.opt;
    const struct flag flags[] = {
        {"length", "tokens of a conversation", &o->length, NULL},
        {"answer", "most tokens of an answer", &o->answer, NULL},
        {"temperature", "0: always the likeliest token", &o->temperature, NULL},
        {"top_k", "sample from the so many likeliest; 0: from all", &o->top_k, NULL},
        {"top_p", "sample from the likeliest with this probability", &o->top_p, NULL},
        {"bytes", "1: activations of 8 bits beside weights of blocks, faster", &o->bytes, NULL},
        {"seed", "of sampling", &o->seed, NULL},
        {"conversations", "at once, 1 to 16", &o->conversations, NULL},
        {"session", "a file that keeps the first conversation", NULL, &o->session},
        {"adapters", "a file of fine_tune", NULL, &o->adapters},
        {"family", "llama3, chatml, mistral, gemma, llama2; as the tokenizer shows", NULL, &o->family},
        {"system", "what the model is told before", NULL, &o->system}, {"device", "cpu, cuda:0, ..", NULL, &o->device},
        {NULL, NULL, NULL, NULL}};
    if (argc < 2 || !flags_parse(flags, argc - 1, argv + 1) || o->conversations < 1 ||
        o->conversations > MAX_CONVERSATIONS || o->length < 16 || o->length > 1 << 20) {
        fprintf(stderr, "usage: chat MODEL.gguf|FOLDER [--OPTION VALUE ..]\n");
        return 2;
    }
    stop = kl_cancel_token_new();
    kl_set_cancel_token(stop);
    struct sigaction action = {.sa_handler = interrupt}; /* without SA_RESTART: it ends reading a line, too */
    sigaction(SIGINT, &action, NULL);
    bool ok = chat_open(&c, argv[1]) && chat_run(&c);
    if (ok && o->session && c.talk[0].at)
        ok = session_write(&c, &c.talk[0], o->session);
    chat_close(&c);
    kl_cancel_token_free(stop);
    return ok ? 0 : 1;
}
