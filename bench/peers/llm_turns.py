"""llama.cpp's turns for bench/peers/llm.c: reads lines "THREADS prompt|token COUNT PATH", prints the seconds of a prompt
of COUNT tokens, or of each of COUNT tokens behind one of 256."""
import sys
import time

import llama_cpp as l

PROMPT = 256
contexts = {}


def context(path, threads):
    if (path, threads) not in contexts:
        model_options = l.llama_model_default_params()
        model_options.n_gpu_layers = 0
        model = l.llama_model_load_from_file(path.encode(), model_options)
        options = l.llama_context_default_params()
        options.n_ctx = 2 * PROMPT
        options.n_batch = options.n_ubatch = PROMPT
        options.n_threads = options.n_threads_batch = threads
        contexts[path, threads] = l.llama_init_from_model(model, options)
    return contexts[path, threads]


def decode(made, tokens):
    array = (l.llama_token * len(tokens))(*tokens)
    if l.llama_decode(made, l.llama_batch_get_one(array, len(tokens))):
        sys.exit("llama_decode failed")
    l.llama_synchronize(made)


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
    decode(made, prompt)
    start = time.perf_counter()
    for i in range(count):
        decode(made, [7])
    print((time.perf_counter() - start) / count, flush=True)
