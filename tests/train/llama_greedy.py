"""Greedy decoding by llama.cpp: llama_greedy.py MODEL COUNT TOKEN .. prints the COUNT tokens behind those given.  The
cache of keys and values has elements of f32."""
import sys

import llama_cpp as l


@l.llama_log_callback
def quiet(level, text, data):
    pass


l.llama_log_set(quiet, None)
l.llama_backend_init()
options = l.llama_model_default_params()
options.n_gpu_layers = 0
model = l.llama_model_load_from_file(sys.argv[1].encode(), options)
tokens, count = [int(t) for t in sys.argv[3:]], int(sys.argv[2])
made_options = l.llama_context_default_params()
made_options.n_ctx = len(tokens) + count
made_options.n_threads = made_options.n_threads_batch = 1
made_options.type_k = made_options.type_v = 0
made = l.llama_init_from_model(model, made_options)
words = l.llama_vocab_n_tokens(l.llama_model_get_vocab(model))
for i in range(len(tokens) - 1 + count):  # one at a time: products of several rows differ between its builds
    if l.llama_decode(made, l.llama_batch_get_one((l.llama_token * 1)(tokens[i]), 1)):
        sys.exit("llama_decode failed")
    if i + 1 < len(tokens):
        continue
    logits = l.llama_get_logits_ith(made, -1)
    tokens.append(max(range(words), key=lambda k: logits[k]))
    print(tokens[-1], flush=True)
