/* Chats as text (<kiln/train/tokenizer.h>): templates of five families, which are recognised and not interpreted. */
#include "tokenizer.h"
#include <string.h>

struct chat {
    const kl_tokenizer *t;
    struct text_buffer out;
    const char *system;       /* a system message that goes in front of the user's next one */
};

static const struct chat_kind {
    const char *name, *mark, *end; /* mark: what its templates have, and a token of most; end: of an answer */
} chat_kinds[KL_CHAT_FAMILIES] = {
    [KL_CHAT_AUTO] = {"auto", NULL, NULL},
    [KL_CHAT_LLAMA3] = {"llama3", "<|start_header_id|>", "<|eot_id|>"},
    [KL_CHAT_CHATML] = {"chatml", "<|im_start|>", "<|im_end|>"},
    [KL_CHAT_MISTRAL] = {"mistral", "[INST]", NULL},
    [KL_CHAT_GEMMA] = {"gemma", "<start_of_turn>", "<end_of_turn>"},
    [KL_CHAT_LLAMA2] = {"llama2", "<<SYS>>", NULL}};

const char *kl_chat_family_name(kl_chat_family family)
{
    return (unsigned)family < KL_CHAT_FAMILIES ? chat_kinds[family].name : "unknown";
}

kl_chat_family kl_chat_family_of(const kl_tokenizer *t)
{
    static const kl_chat_family order[] = {KL_CHAT_LLAMA3, KL_CHAT_CHATML, KL_CHAT_GEMMA, KL_CHAT_LLAMA2,
                                           KL_CHAT_MISTRAL};
    for (size_t i = 0; t && i < sizeof order / sizeof *order; i++) {
        const char *mark = chat_kinds[order[i]].mark;
        if (t->chat_template ? strstr(t->chat_template, mark) != NULL : token_find(t, mark, strlen(mark)) >= 0)
            return order[i];
    }
    return KL_CHAT_AUTO;
}

int64_t kl_chat_end_token(const kl_tokenizer *t, kl_chat_family family)
{
    if (family == KL_CHAT_AUTO)
        family = kl_chat_family_of(t);
    if (!t || family <= KL_CHAT_AUTO || family >= KL_CHAT_FAMILIES)
        return -1;
    const char *end = chat_kinds[family].end;
    return end ? token_find(t, end, strlen(end)) : t->special[KL_TOKEN_EOS];
}

/* ---- writing ---- */

static void chat_put(struct chat *c, const char *text) { buffer_add(&c->out, text, strlen(text)); }

static void chat_put_special(struct chat *c, kl_token_special which)
{
    int64_t bytes;
    const char *text = kl_tokenizer_text(c->t, c->t->special[which], &bytes);
    buffer_add(&c->out, text, (size_t)bytes);
}

/* A text without white space at its ends. */
static void chat_put_trimmed(struct chat *c, const char *text)
{
    static const char space[] = " \t\n\v\f\r";
    text += strspn(text, space);
    size_t n = strlen(text);
    while (n && strchr(space, text[n - 1]))
        n--;
    buffer_add(&c->out, text, n);
}

static bool chat_is(const kl_chat_message *m, const char *role) { return !strcmp(m->role, role); }

/* The system message, if one waits, and what separates it from the user's. */
static void chat_put_system(struct chat *c, const char *before, const char *after)
{
    if (!c->system)
        return;
    chat_put(c, before);
    chat_put_trimmed(c, c->system);
    chat_put(c, after);
    c->system = NULL;
}

static void chat_llama3(struct chat *c, const kl_chat_message *m)
{
    chat_put(c, "<|start_header_id|>");
    chat_put(c, m->role);
    chat_put(c, "<|end_header_id|>\n\n");
    chat_put_trimmed(c, m->text);
    chat_put(c, "<|eot_id|>");
}

static void chat_chatml(struct chat *c, const kl_chat_message *m)
{
    chat_put(c, "<|im_start|>");
    chat_put(c, m->role);
    chat_put(c, "\n");
    chat_put(c, m->text);
    chat_put(c, "<|im_end|>\n");
}

static void chat_gemma(struct chat *c, const kl_chat_message *m)
{
    bool user = chat_is(m, "user");
    chat_put(c, user ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
    if (user)
        chat_put_system(c, "", "\n\n");
    chat_put_trimmed(c, m->text);
    chat_put(c, "<end_of_turn>\n");
}

/* Where [INST] is a token, as from version 3 on, no space is in front of its end. */
static void chat_mistral(struct chat *c, const kl_chat_message *m)
{
    bool token = token_find(c->t, "[INST]", 6) >= 0;
    if (chat_is(m, "user")) {
        chat_put(c, "[INST] ");
        chat_put_system(c, "", "\n\n");
        chat_put(c, m->text);
        chat_put(c, token ? "[/INST]" : " [/INST]");
    } else {
        chat_put(c, token ? " " : "");
        chat_put(c, m->text);
        chat_put_special(c, KL_TOKEN_EOS);
    }
}

static void chat_llama2(struct chat *c, const kl_chat_message *m)
{
    if (chat_is(m, "user")) {
        chat_put_special(c, KL_TOKEN_BOS); /* in front of each question */
        chat_put(c, "[INST] ");
        chat_put_system(c, "<<SYS>>\n", "\n<</SYS>>\n\n");
        chat_put_trimmed(c, m->text);
        chat_put(c, " [/INST]");
    } else {
        chat_put(c, " ");
        chat_put_trimmed(c, m->text);
        chat_put(c, " ");
        chat_put_special(c, KL_TOKEN_EOS);
    }
}

/* ---- checks ---- */

static bool chat_message_is_valid(const kl_tokenizer *t, kl_chat_family family, int64_t i, const kl_chat_message *m)
{
    if (!m->role || !m->text)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "chat_format: message %lld has no role or no text", (long long)i), false;
    const char *parts[] = {m->role, m->text};
    for (int k = 0; k < 2; k++) {
        const uint8_t *found = added_find_special(t, (const uint8_t *)parts[k], strlen(parts[k]));
        if (found)
            return kl_failf(NULL, KL_ERR_ARGUMENT, "chat_format: message %lld has a special token at byte %lld of its "
                            "%s: \"%.40s\"", (long long)i, (long long)((const char *)found - parts[k]),
                            k ? "text" : "role", (const char *)found), false;
    }
    bool any = family == KL_CHAT_LLAMA3 || family == KL_CHAT_CHATML;
    if (!any && !chat_is(m, "system") && !chat_is(m, "user") && !chat_is(m, "assistant"))
        return kl_failf(NULL, KL_ERR_ARGUMENT, "chat_format: message %lld has the role \"%.40s\"; %s has system, user "
                        "and assistant", (long long)i, m->role, kl_chat_family_name(family)), false;
    return true;
}

static void chat_write(struct chat *c, kl_chat_family family, int64_t n, const kl_chat_message *messages, bool answer)
{
    static void (*const put[KL_CHAT_FAMILIES])(struct chat *c, const kl_chat_message *m) = {
        NULL, chat_llama3, chat_chatml, chat_mistral, chat_gemma, chat_llama2};
    static const char *const begin[KL_CHAT_FAMILIES] = {
        NULL, "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|im_start|>assistant\n", "",
        "<start_of_turn>model\n", ""};
    bool has_system = family == KL_CHAT_LLAMA3 || family == KL_CHAT_CHATML;
    if (family != KL_CHAT_CHATML && family != KL_CHAT_LLAMA2)
        chat_put_special(c, KL_TOKEN_BOS);
    for (int64_t i = 0; i < n; i++)
        if (!has_system && chat_is(&messages[i], "system"))
            c->system = messages[i].text;
        else
            put[family](c, &messages[i]);
    if (answer)
        chat_put(c, begin[family]);
}

kl_status kl_chat_format(const kl_tokenizer *t, kl_chat_family family, int64_t n, const kl_chat_message *messages,
                         bool answer, char *text, int64_t room, int64_t *bytes)
{
    if (bytes)
        *bytes = 0;
    if (!t || n < 0 || (n && !messages) || room < 0 || (room && !text) || !bytes)
        return kl_failf(NULL, KL_ERR_ARGUMENT, "chat_format: an argument is NULL or negative");
    if (family == KL_CHAT_AUTO)
        family = kl_chat_family_of(t);
    if (family <= KL_CHAT_AUTO || family >= KL_CHAT_FAMILIES)
        return kl_failf(NULL, KL_ERR_ARGUMENT,
                        "chat_format: the %s is none that is known (llama3, chatml, mistral, gemma, llama2): name one",
                        t->chat_template ? "chat template of the file" : "family of chats");
    for (int64_t i = 0; i < n; i++)
        if (!chat_message_is_valid(t, family, i, &messages[i]))
            return KL_ERR_ARGUMENT;
    struct chat c = {.t = t};
    chat_write(&c, family, n, messages, answer);
    size_t fits = c.out.n < (size_t)room ? c.out.n : (size_t)room;
    if (fits)
        memcpy(text, c.out.at, fits);
    if (fits < (size_t)room)
        text[fits] = 0;
    *bytes = c.out.failed ? 0 : (int64_t)c.out.n;
    buffer_free(&c.out);
    return c.out.failed ? kl_failf(NULL, KL_ERR_MEMORY, "chat_format: out of memory") : KL_OK;
}
