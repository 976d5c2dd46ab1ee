/* llm.c's turns for bench/peers/gpt2.c: built with its train_gpt2.c, which bench/run.sh fetches.
 *
 *     turns CHECKPOINT BATCHES B T STEPS
 *
 * Prints "ready", then for each line of its input makes a training step with the next batch and prints the seconds that
 * it took and the loss.  BATCHES: i32 [STEPS, B, T + 1], taken again from the first after the last. */
#define TESTING /* train_gpt2.c then has no main */
#include "train_gpt2.c"

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    int B = atoi(argv[3]), T = atoi(argv[4]), steps = atoi(argv[5]), c;
    size_t n = (size_t)steps * B * (T + 1), rows = (size_t)B * T;
    int *text = malloc(n * sizeof *text), *in = malloc(rows * sizeof *in), *next = malloc(rows * sizeof *next);
    FILE *f = fopen(argv[2], "rb");
    if (!text || !in || !next || !f || fread(text, sizeof *text, n, f) != n)
        return 1;
    fclose(f);
    GPT2 model;
    FILE *answers = fdopen(dup(1), "w"); /* what it prints itself goes to stderr */
    dup2(2, 1);
    gpt2_build_from_checkpoint(&model, argv[1]);
    fprintf(answers, "ready\n");
    fflush(answers);
    for (int step = 0; (c = getchar()) != EOF;) {
        if (c != '\n')
            continue;
        const int *batch = text + (size_t)(step % steps) * B * (T + 1);
        for (int b = 0; b < B; b++) {
            memcpy(in + b * T, batch + b * (T + 1), (size_t)T * sizeof *in);
            memcpy(next + b * T, batch + b * (T + 1) + 1, (size_t)T * sizeof *next);
        }
        double start = seconds_now();
        gpt2_forward(&model, in, next, (size_t)B, (size_t)T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, ++step);
        fprintf(answers, "%.6f %.9g\n", seconds_now() - start, (double)model.mean_loss);
        fflush(answers);
    }
    return 0;
}
