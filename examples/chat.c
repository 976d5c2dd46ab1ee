/* Chats with a language model on the terminal: a GGUF file, or a folder of safetensors with tokenizer.json.
 *
 *     chat model.gguf
 *     chat model.gguf --session talk.safetensors        goes on where it was left
 *     chat model.gguf --conversations 3                 three at once: line by line to each in turn
 *     chat model.gguf --cache q8_0                      keys and values in a quarter of the memory
 *
 * Conversations are the rows of one cache: each prompt runs by itself, then a step makes the next token of all answers.
 * Answers appear as they are made; Ctrl-C ends an answer, and at the prompt the program.  Read record_step, run_prompt
 * and answer first; the rest is text, files and options. */
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
    const char *session, *system, *family, *adapters, *device, *cache;
};

/* A conversation: the tokens so far, of which row `row` of the cache has the first cache.at[row]. */
struct talk {
    int64_t row;
    int32_t *ids;
    int64_t count;
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
    kl_nn_cache cache;
    kl_step *prompt, *token; /* of a piece of one prompt, and of one token of each conversation */
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

/* A step that stores the first `counts`, i32 [rows], of n tokens of so many conversations, ids i32 [rows, n], and gives
 * the token behind each one's last.  Where these are not all conversations, a third input says which rows they are. */
static kl_step *record_step(struct chat *c, int64_t n, int64_t rows)
{
    int32_t zeros[PIECE + MAX_CONVERSATIONS] = {0};
    const struct llm *m = &c->model;
    kl_trace_begin(n == 1 ? "token" : "prompt");
    kl_tensor ids = kl_input(m->device, KL_I32, 2, (int64_t[]){rows, n}, zeros);
    kl_tensor counts = kl_input(m->device, KL_I32, 1, &rows, zeros);
    kl_tensor which = rows < c->talks ? kl_input(m->device, KL_I32, 1, &rows, zeros) : kl_none;
    kl_nn_cache_select(&c->cache, which, counts);
    kl_tensor last = kl_sub_scalar(counts, 1);
    kl_tensor position = kl_add(kl_squeeze(kl_nn_positions(m->device, 1, &c->cache), 1), last);
    kl_tensor hidden = llm_hidden(m, ids, &c->cache);
    kl_tensor logits = kl_squeeze(llm_logits(m, n == 1 ? hidden : kl_take(hidden, 1, last)), 1);
    kl_tensor seeds = kl_random_fold_in(kl_scalar(m->device, KL_U64, c->opt.seed), position);
    kl_sample_options sample = {.temperature = c->opt.temperature, .top_k = (int64_t)c->opt.top_k,
                                .top_p = c->opt.top_p};
    kl_keep(kl_sample(logits, seeds, &sample));
    return kl_trace_end_step(which.id ? 3 : 2, (kl_tensor[]){ids, counts, which});
}

/* Runs a step on n conversations, counts[i] tokens of each; next[i] is the one behind.  false: it is cancelled, or it
 * failed; nothing has changed. */
static bool run_step(struct chat *c, kl_step *step, int64_t n, struct talk *talks, const int64_t *counts, int32_t *next)
{
    int32_t ids[PIECE + MAX_CONVERSATIONS] = {0}, more[MAX_CONVERSATIONS], which[MAX_CONVERSATIONS];
    int64_t rows[MAX_CONVERSATIONS], room = step == c->token ? 1 : PIECE;
    for (int64_t i = 0; i < n; i++) {
        rows[i] = talks[i].row, which[i] = (int32_t)rows[i], more[i] = (int32_t)counts[i];
        memcpy(ids + i * room, talks[i].ids + c->cache.at[rows[i]], (size_t)counts[i] * sizeof *ids);
    }
    kl_device device = c->model.device;
    int64_t inputs = n < c->talks ? 3 : 2;
    kl_tensor y, in[3] = {kl_input(device, KL_I32, 2, (int64_t[]){n, room}, ids),
                          kl_input(device, KL_I32, 1, &n, more),
                          inputs == 3 ? kl_input(device, KL_I32, 1, &n, which) : kl_none};
    bool ok = kl_step_run(step, inputs, in, 0, NULL, 1, &y) == KL_OK;
    if (ok) {
        ok = kl_nn_cache_count(&c->cache, n, rows, counts) == KL_OK &&
             kl_read(y, next, (size_t)n * sizeof *next) == KL_OK;
        kl_release(y);
    }
    for (int i = 0; i < inputs; i++)
        kl_release(in[i]);
    return ok;
}

static int64_t left(const struct chat *c, const struct talk *t) { return t->count - c->cache.at[t->row]; }

/* Runs the tokens that the cache does not have yet, and appends the next one. */
static bool run_prompt(struct chat *c, struct talk *t)
{
    int32_t next;
    while (left(c, t) > 1) {
        int64_t n = left(c, t) < PIECE ? left(c, t) : PIECE;
        if (!run_step(c, c->prompt, 1, t, &n, &next))
            return false;
    }
    if (!left(c, t))
        t->ids[t->count++] = next;
    return true;
}

/* Runs one token of all open conversations, and appends the next ones. */
static bool run_tokens(struct chat *c)
{
    int64_t counts[MAX_CONVERSATIONS];
    int32_t next[MAX_CONVERSATIONS];
    for (int i = 0; i < c->talks; i++)
        counts[i] = c->talk[i].open;
    if (!run_step(c, c->token, c->talks, c->talk, counts, next))
        return false;
    for (int i = 0; i < c->talks; i++)
        if (c->talk[i].open)
            c->talk[i].ids[c->talk[i].count++] = next[i];
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

/* Shows the token that was appended last; the answer may end with it. */
static void show_token(const struct chat *c, struct talk *t)
{
    bool end = is_end(c, t->ids[t->count - 1]) || t->count - t->answer_from >= (int64_t)c->opt.answer ||
               t->count >= c->cache.length;
    if (c->talks > 1 && end)
        printf("[%d] ", (int)t->row + 1);
    if (c->talks == 1 || end)
        print_answer(c, t, end);
    if (end)
        putchar('\n');
    t->open = !end;
}

/* Makes the answers of all open conversations.  One alone is printed as it comes. */
static bool answer(struct chat *c)
{
    int64_t tokens = 0, open = 1;
    double start = now(), first = 0;
    bool ok = true;
    for (; open && ok; first = first > 0 ? first : now()) {
        open = 0;
        for (int i = 0; i < c->talks && ok; i++) {
            struct talk *t = &c->talk[i];
            if (t->open && left(c, t) > 1 && (ok = run_prompt(c, t)) && t->count > t->answer_from)
                show_token(c, t), tokens++;
            open += t->open;
        }
        if (!open || !ok || !(ok = run_tokens(c)))
            break;
        for (int i = 0; i < c->talks; i++)
            if (c->talk[i].open)
                show_token(c, &c->talk[i]), tokens++;
    }
    if (!ok && kl_last_error_code() != KL_ERR_CANCELLED)
        return llm_fail("chat", kl_last_error());
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
    return kl_nn_cache_save(&c->cache, t->row, path, llm_hash(&c->model), t->count, t->ids) == KL_OK ||
           llm_fail(path, kl_last_error());
}

static bool session_read(struct chat *c, struct talk *t, const char *path)
{
    int64_t room = (int64_t)c->opt.length;
    if (kl_nn_cache_load(&c->cache, t->row, path, llm_hash(&c->model), room, t->ids, &t->count) != KL_OK)
        return llm_fail(path, kl_last_error());
    return t->count < room || llm_fail(path, "a longer conversation; --length N makes room");
}

/* ---- the program ---- */

static bool chat_open(struct chat *c, const char *path)
{
    char file[4096];
    kl_device device = c->opt.device ? kl_device_named(c->opt.device) : kl_device_default();
    if (!device.id)
        return llm_fail("no device", kl_last_error());
    if (!llm_open(&c->model, device, path, c->opt.bytes > 0))
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
    c->talks = (int)c->opt.conversations;
    if (!llm_cache_init(&c->cache, &c->model, c->talks, (int64_t)c->opt.length, c->opt.cache))
        return false;
    for (int i = 0; i < c->talks; i++) {
        c->talk[i].row = i;
        if (!(c->talk[i].ids = calloc((size_t)c->opt.length + PIECE, sizeof *c->talk[i].ids)))
            return llm_fail("chat", "out of memory");
    }
    c->prompt = record_step(c, PIECE, 1);
    c->token = c->prompt ? record_step(c, 1, c->talks) : NULL;
    if (!c->token)
        return llm_fail("chat", kl_last_error());
    const char *session = c->opt.session;
    return !session || access(session, F_OK) != 0 || session_read(c, &c->talk[0], session);
}

static void chat_close(struct chat *c)
{
    kl_step_free(c->prompt), kl_step_free(c->token);
    kl_nn_cache_deinit(&c->cache);
    for (int i = 0; i < c->talks; i++)
        free(c->talk[i].ids);
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
                                   .seed = 1, .conversations = 1, .bytes = 1}};
    struct options *o = &c.opt;
    const struct flag flags[] = {
        {"length", "tokens of a conversation", &o->length, NULL},
        {"answer", "most tokens of an answer", &o->answer, NULL},
        {"temperature", "0: always the likeliest token", &o->temperature, NULL},
        {"top_k", "sample from the so many likeliest; 0: from all", &o->top_k, NULL},
        {"top_p", "sample from the likeliest with this probability", &o->top_p, NULL},
        {"bytes", "0: activations of floats, not of 8 bits, beside weights of blocks; slower", &o->bytes, NULL},
        {"seed", "of sampling", &o->seed, NULL},
        {"conversations", "at once, 1 to 16", &o->conversations, NULL},
        {"session", "a file that keeps the first conversation", NULL, &o->session},
        {"adapters", "a file of fine_tune", NULL, &o->adapters},
        {"cache", "type of keys and values: f32, f16, q8_0", NULL, &o->cache},
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
    if (ok && o->session && c.talk[0].count)
        ok = session_write(&c, &c.talk[0], o->session);
    chat_close(&c);
    kl_cancel_token_free(stop);
    return ok ? 0 : 1;
}
