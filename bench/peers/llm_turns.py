"""llama.cpp's turns for bench/peers/llm.c: reads lines "THREADS prompt|token|batch COUNT PATH", prints the seconds of a
prompt of COUNT tokens, of each of COUNT tokens behind one of 256, or of each of COUNT tokens of 16 sequences at once,
behind 32 of each."""
import sys
import time

import llama_cpp as l

PROMPT, SEQUENCES, BEFORE = 256, 16, 32
contexts = {}


def context(path, threads):
    if (path, threads) not in contexts:
        model_options = l.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model = l.llama_model_load_from_file(path.encode(), model_options)
        options = l.llama_context_default_params()
        options.n_ctx = 4 * PROMPT
        options.n_seq_max = SEQUENCES
        options.kv_unified = True
        options.n_batch = options.n_ubatch = PROMPT
        options.n_threads = options.n_threads_batch = threads
        contexts[path, threads] = l.llama_init_from_model(model, options)
    return contexts[path, threads]


def decode(made, tokens):
    array = (l.llama_token * len(tokens))(*tokens)
    if l.llama_decode(made, l.llama_batch_get_one(array, len(tokens))):
        sys.exit("llama_decode failed")
    l.llama_synchronize(made)


def decode_sequences(made, position):
    batch = l.llama_batch_init(SEQUENCES, 0, 1)
    batch.n_tokens = SEQUENCES
    for i in range(SEQUENCES):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = 7, position, 1, 1
        batch.seq_id[i][0] = i
    if l.llama_decode(made, batch):
        sys.exit("llama_decode failed")
    l.llama_synchronize(made)
    l.llama_batch_free(batch)


def clear(made):
    l.llama_memory_clear(l.llama_get_memory(made), True)


@l.llama_log_callback
def quiet(level, text, data):
    pass


l.llama_log_set(quiet, None)
l.llama_backend_init()
for line in sys.stdin:
    threads, what, count, path = line.rstrip("\n").split(" ", 3)
    made, count = context(path, int(threads)), int(count)
    prompt = [(i * 7919 + 13) % 500 for i in range(PROMPT)]
    clear(made)
    start = time.perf_counter()
    if what == "prompt":
        decode(made, prompt[:count])
        print(time.perf_counter() - start, flush=True)
        continue
    if what == "batch":
        for i in range(BEFORE):
            decode_sequences(made, i)
    else:
        decode(made, prompt)
    start = time.perf_counter()
    for i in range(count):
        if what == "batch":
            decode_sequences(made, BEFORE + i)
        else:
            decode(made, [7])
    print((time.perf_counter() - start) / count, flush=True)
